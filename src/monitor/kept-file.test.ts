import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { KeptFile } from "./kept-file.ts";

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-kept-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

test("however fast it is replaced, the file is always whole and ends as the last", async () => {
  const path = join(directory, "kept.json");
  const kept = new KeptFile(path);
  const seen = new Set<string>();
  for (let n = 0; n <= 300; n += 1) {
    kept.replace(JSON.stringify({ n, padding: "x".repeat(50_000) }));
    if (n % 10 === 0) await new Promise((resolve) => setImmediate(resolve));
    try {
      const { padding } = JSON.parse(readFileSync(path, "utf8"));
      seen.add(String(padding.length));
    } catch (error) {
      expect((error as NodeJS.ErrnoException).code).toBe("ENOENT");
    }
  }
  await kept.settled();
  expect([...seen]).toEqual(["50000"]);
  expect(JSON.parse(readFileSync(path, "utf8")).n).toBe(300);
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(readdirSync(directory)).toEqual(["kept.json"]);
});

test("a directory that is gone is no error; once it is back it is written to again", async () => {
  const folder = join(directory, "run");
  const kept = new KeptFile(join(folder, "kept.json"));
  kept.replace("lost");
  await kept.settled();
  mkdirSync(folder);
  kept.replace("kept");
  await kept.settled();
  expect(readFileSync(join(folder, "kept.json"), "utf8")).toBe("kept");
});
