import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { scriptedRun } from "../bench/support/scripted-run.mjs";
import { type LogFields, silentLog } from "../src/base/log.ts";
import { History } from "../src/monitor/history.ts";
import { encodeHistory } from "../src/monitor/history-file.ts";
import type { Monitor, MonitorOptions } from "../src/monitor/monitor.ts";
import type { Published } from "../src/monitor/server.ts";
import type { StatusDocument } from "../src/run/status.ts";
import { type MonitorChild, startMonitorChild } from "./support/browser.ts";

/** The monitor from dist/: its thread cannot run the source on Node 20. */
const dist = (name: string): string => new URL(`../dist/monitor/${name}.js`, import.meta.url).href;
const { startMonitor } = (await import(dist("monitor"))) as typeof import("../src/monitor/monitor.ts");

let directory: string;
let monitors: Monitor[];
let children: MonitorChild[];
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-monitor-"));
  monitors = [];
  children = [];
});
afterEach(async () => {
  await Promise.all(children.map((child) => child.kill()));
  await Promise.all(monitors.map((monitor) => monitor.close(published())));
  rmSync(directory, { recursive: true });
});

function published(change: Partial<StatusDocument["run"]> = {}): Published {
  const run = scriptedRun({
    nowMs: Date.now,
    edit: (document) => ({ ...document, run: { ...document.run, ...change } }),
  });
  return { document: run.snapshot(), counters: run.counters() };
}

async function start(options: Partial<MonitorOptions> = {}): Promise<Monitor> {
  const monitor = await startMonitor({
    first: published(),
    port: 0,
    statusFile: join(directory, "status.json"),
    historyFile: join(directory, "history.json"),
    log: silentLog,
    ...options,
  });
  monitors.push(monitor);
  return monitor;
}

async function read(monitor: Monitor, path: string) {
  return (await fetch(`${monitor.url}${path}`)).json();
}

test("however long the main thread is busy, everything is answered", async () => {
  const until = join(directory, "free");
  const child = await startMonitorChild({ blockedUntil: until });
  children.push(child);
  child.signal("SIGUSR2");
  await child.says("blocked");
  for (const path of ["/", "/api/status", "/api/history", "/metrics", "/healthz"]) {
    expect((await fetch(`${child.url}${path}`)).status, path).toBe(200);
  }
  expect(child.said).not.toContain("free");
  writeFileSync(until, "");
  await child.says("free");
});

test("what was published last is what everybody reads, and what stands in the run directory at the end", async () => {
  const monitor = await start();
  for (let i = 0; i < 50; i += 1) monitor.publish(published({ phase: `step ${i}` }));
  await vi.waitFor(async () => expect((await read(monitor, "/api/status")).run.phase).toBe("step 49"));
  const last = published({ state: "done" });
  await monitor.close(last);
  expect(JSON.parse(readFileSync(join(directory, "status.json"), "utf8"))).toEqual(
    JSON.parse(JSON.stringify(last.document)),
  );
  await expect(fetch(monitor.url)).rejects.toThrow();
});

test("the charts go on after the monitor before this one, with the gap between them", async () => {
  const before = new History();
  const nowS = Date.now() / 1_000;
  scriptedRun({ nowMs: () => (nowS - 3_600) * 1_000 }).fillHistory(before, 1);
  const { id } = published().document.run;
  writeFileSync(join(directory, "history.json"), encodeHistory(id, before));
  const monitor = await start();
  monitor.publish(published());
  await monitor.close(published());
  const again = await start();
  const { t } = (await read(again, "/api/history")) as { t: number[] };
  // Of an hour ago, so in steps of ten seconds by now.
  expect(t.filter((at) => at < nowS - 3_590).length).toBeGreaterThan(350);
  expect(t.filter((at) => at > nowS - 3_590 && at < nowS - 1)).toEqual([]);
  expect(t.filter((at) => at >= nowS - 1).length).toBeGreaterThan(0);
});

test("another run at the same address does not begin with the charts of the one before", async () => {
  const before = new History();
  const nowS = Date.now() / 1_000;
  scriptedRun({ nowMs: () => (nowS - 60) * 1_000 }).fillHistory(before, 0.1);
  writeFileSync(join(directory, "history.json"), encodeHistory("another", before));
  // Which run it is turns out only when the store was read.
  const monitor = await start({ first: published({ id: "" }) });
  expect((await read(monitor, "/api/history")).t.length).toBeGreaterThan(before.points().length);
  monitor.publish(published());
  await vi.waitFor(async () => {
    const { t } = (await read(monitor, "/api/history")) as { t: number[] };
    expect(Math.min(...t)).toBeGreaterThan(nowS - 1);
  });
});

test("a history that cannot be read costs the charts their past and nothing else", async () => {
  writeFileSync(join(directory, "history.json"), '{"version":1,"run":"x","colu');
  const monitor = await start();
  expect((await read(monitor, "/api/history")).t).toHaveLength(1);
});

test("a thread that dies is started anew on its port with the newest document, and said so", async () => {
  const entry = join(directory, "dies.mjs");
  writeFileSync(
    entry,
    `import { parentPort } from "node:worker_threads";
     parentPort.on("message", ({ published }) => {
       if (published?.document.run.phase === "die") throw new Error("as told");
     });
     await import(${JSON.stringify(dist("monitor-worker"))});`,
  );
  const said: [string, LogFields?][] = [];
  const log = { ...silentLog, error: (...line: [string, LogFields?]) => said.push(line) };
  const monitor = await start({ threadUrl: pathToFileURL(entry), log });
  monitor.publish(published({ phase: "die" }));
  await vi.waitFor(() => expect(said).toEqual([["monitor.ended", { reason: "as told" }]]), 10_000);
  monitor.publish(published({ phase: "after" }));
  await vi.waitFor(async () => expect((await read(monitor, "/api/status")).run.phase).toBe("after"), 10_000);
});

test("a port that cannot be had is refused as by the server itself", async () => {
  const first = await start();
  await expect(start({ port: first.port, nextFreePort: false })).rejects.toMatchObject({
    name: "RunError",
    subject: `127.0.0.1:${first.port}`,
    hint: expect.stringContaining("--port"),
    exit: 78,
  });
  expect((await start({ port: first.port })).port).toBeGreaterThan(first.port);
});
