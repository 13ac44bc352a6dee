import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { type SmallDisk, smallDisk } from "./support/disks.ts";
import {
  events,
  expectWhole,
  type FaultyRun,
  faultyRun,
  logged,
  packsOf,
  sickEngines,
  startRun,
  statusWhere,
} from "./support/faults.ts";
import { type KillSubject, killAt } from "./support/kills.ts";

/** What becomes of a run whose disk is full, read-only or has spoiled what was on it. */

let reference: FaultyRun;
let expected: Map<string, string>;
let run: FaultyRun;
let disk: SmallDisk | null = null;
beforeAll(async () => {
  reference = faultyRun("reference", null);
  const ended = await startRun(reference).ended;
  expect(ended.code, ended.stderr).toBe(0);
  expected = await packsOf(reference);
});
afterEach(async () => {
  disk?.remove();
  disk = null;
  await run?.machine.remove();
});
afterAll(() => reference?.machine.remove());

describe("a spool on a small disk", () => {
  test.each([
    ["bytes", "2m", "batch.committed", fill],
    ["inodes", "8m,nr_inodes=40", "spool.opened", fillInodes],
  ])(
    "whose %s others use up: no crash, blocked with the reason, and on by itself once there is room",
    async (what, size, event, use) => {
      run = faultyRun(`filled-${what}`, null);
      disk = smallDisk(run.machine.path("spool"), size);
      const running = startRun(run, ...sickEngines({ delayMs: 300 }));
      // While the run has files there it lives on the inodes that it frees itself: they must go before it has any.
      await logged(run, running, event);
      // In one of the spool's own folders, because the disk has no other place.
      const others = join(disk.path, "quarantine/others");
      mkdirSync(others);
      use(others);
      const blocked = await statusWhere(run, running, ({ run: { state } }) => state === "blocked");
      expect(blocked.run.reason).toMatch(/disk/);
      expect(blocked.run.action).toMatch(/free disk space/);
      rmSync(others, { recursive: true });
      const ended = await running.ended;
      expect(ended.code, ended.stderr).toBe(0);
      expect(events(run, "engine.hello").length).toBe(1);
      await expectWhole(run, expected);
    },
  );

  test("that stays full does not hold up a stop: it is graceful, and the same command goes on", async () => {
    run = faultyRun("full-stop", null);
    disk = smallDisk(run.machine.path("spool"), "2m");
    const running = startRun(run, ...sickEngines({ delayMs: 300 }));
    await logged(run, running, "batch.committed");
    const others = join(disk.path, "quarantine/others");
    mkdirSync(others);
    fill(others);
    await statusWhere(run, running, ({ run: { state } }) => state === "blocked");
    running.child.kill("SIGTERM");
    const stopped = await running.ended;
    expect(stopped.code, stopped.stderr).toBe(143);
    rmSync(others, { recursive: true });
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(run, expected);
  });

  test("that becomes read-only ends the run with exit 8 and the path; mended, the same command goes on", async () => {
    run = faultyRun("frozen", null);
    disk = smallDisk(run.machine.path("spool"), "16m");
    expect(await killAt(run, { point: "ready", nth: 3, delayMs: 0 })).toBe(true);
    const before = spoolFiles(disk.path);
    disk.readOnly();
    const refused = await startRun(run).ended;
    expect(refused.code, refused.stderr).toBe(8);
    expect(refused.stderr).toMatch(/read-only/);
    expect(refused.stderr).toContain(disk.path);
    expect(refused.stderr).toMatch(/ {2}safe: .*\n {2}next: /);
    expect(spoolFiles(disk.path)).toEqual(before);
    disk.readWrite();
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(run, expected);
  });
});

test("a store directory that is full: blocked, a stop is graceful even so, and the same command goes on", async () => {
  run = faultyRun("store-full", null);
  disk = smallDisk(run.machine.path("store"), "1m");
  const running = startRun(run, ...sickEngines({ delayMs: 200 }));
  await logged(run, running, "batch.committed");
  fill(disk.path);
  const blocked = await statusWhere(run, running, ({ run: { state } }) => state === "blocked");
  expect(blocked.run.reason).toMatch(/full/);
  running.child.kill("SIGTERM");
  const stopped = await running.ended;
  expect(stopped.code, stopped.stderr).toBe(143);
  expect(readdirSync(run.machine.path("spool/ready")).length).toBeGreaterThan(0);
  rmSync(join(disk.path, "other"));
  const later = await startRun(run).ended;
  expect(later.code, later.stderr).toBe(0);
  await expectWhole(run, expected);
});

describe("a pack in ready/ that a power cut spoiled", () => {
  test.each([
    ["a flipped bit", (bytes: Buffer) => bytes.map((byte, i) => (i === bytes.length - 5 ? byte ^ 4 : byte))],
    ["a cut end", (bytes: Buffer) => bytes.subarray(0, bytes.length - 100)],
    ["pages of zeros", (bytes: Buffer) => bytes.fill(0, 4_096, 8_192)],
    ["nothing in it", () => Buffer.alloc(0)],
  ])(
    "(%s) is found at the start, before an engine or an upload, kept aside, and made again",
    async (_, spoil) => {
      run = faultyRun("spoiled", null);
      expect(await killAt(run as KillSubject, { point: "ready", nth: 2, delayMs: 0 })).toBe(true);
      const ready = run.machine.path("spool/ready");
      const [name] = readdirSync(ready).sort();
      const path = join(ready, name!);
      const spoiled = spoil(readFileSync(path));
      writeFileSync(path, spoiled);
      const starts = events(run, "run.planned").length;
      const ended = await startRun(run).ended;
      expect(ended.code, ended.stderr).toBe(0);
      expect(events(run, "run.planned").length).toBe(starts + 1);
      expect(events(run, "spool.spoiled")).toMatchObject([{ batch: Number(name!.slice(0, 8)) }]);
      expect(events(run, "batch.requeued")).toEqual([]);
      const [aside] = readdirSync(run.machine.path("spool/quarantine"));
      expect(readFileSync(run.machine.path("spool/quarantine", aside!))).toEqual(spoiled);
      expect(await packsOf(run)).toEqual(expected);
    },
  );
});

function fill(directory: string): void {
  const path = join(directory, "other");
  for (let bytes = 2 ** 20; bytes >= 512; bytes /= 2) {
    try {
      for (;;) writeFileSync(path, Buffer.alloc(bytes), { flag: "a" });
    } catch {
      // No room for so much: try half of it.
    }
  }
}

function fillInodes(directory: string): void {
  try {
    for (let i = readdirSync(directory).length; ; i += 1) writeFileSync(join(directory, String(i)), "");
  } catch {
    // None left.
  }
}

function spoolFiles(directory: string): string[] {
  if (!existsSync(directory)) return [];
  return readdirSync(directory, { recursive: true, encoding: "utf8" }).sort();
}
