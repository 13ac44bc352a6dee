import { existsSync, mkdirSync, mkdtempSync, rmSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { silentLog } from "../base/log.ts";
import { DirectoryStore } from "./directory.ts";
import { probeStore } from "./probe.ts";

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-probe-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

describe("the probe", () => {
  it("leaves nothing of its own, removes what killed ones left, and not what one may be at just now", async () => {
    const leftover = (folder: string, hoursAgo: number) => {
      const path = join(directory, "run/probe", folder, "0");
      mkdirSync(join(path, ".."), { recursive: true });
      writeFileSync(path, "left");
      const time = Date.now() / 1000 - hoursAgo * 3600;
      utimesSync(path, time, time);
      return path;
    };
    const [old, fresh] = [leftover("aa".repeat(8), 2), leftover("bb".repeat(8), 0.1)];
    const store = new DirectoryStore({ kind: "directory", directory, name: "run" });
    await probeStore(store, { log: silentLog, random: Math.random });
    expect([existsSync(old), existsSync(fresh)]).toEqual([false, true]);
    const left = [];
    for await (const { key } of store.list("probe/")) left.push(key);
    expect(left).toEqual([`probe/${"bb".repeat(8)}/0`]);
  });
});
