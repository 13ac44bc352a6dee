import { readdirSync } from "node:fs";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import {
  events,
  expectWhole,
  type FaultyRun,
  faultyRun,
  logged,
  packsOf,
  ROWS,
  sickEngines,
  startRun,
} from "./support/faults.ts";
import { runArgs } from "./support/kills.ts";

/** What becomes of a run whose engines die, hang or lie, through the built program. */

let reference: FaultyRun;
let expected: Map<string, string>;
let run: FaultyRun;
beforeAll(async () => {
  reference = faultyRun("reference", null);
  const ended = await startRun(reference).ended;
  expect(ended.code, ended.stderr).toBe(0);
  expected = await packsOf(reference);
  expect(expected.size).toBeGreaterThanOrEqual(10);
});
afterEach(() => run?.machine.remove());
afterAll(() => reference?.machine.remove());

describe("an engine", () => {
  test("that is killed in the middle of its batches is restarted, and they are done again", async () => {
    run = faultyRun("killed", null);
    const running = startRun(run, ...sickEngines({ delayMs: 300 }));
    const { pid } = await logged(run, running, "engine.hello");
    await logged(run, running, "batch.committed");
    process.kill(Number(pid), "SIGKILL");
    const ended = await running.ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(events(run, "engine.hello").length).toBe(2);
    expect(events(run, "engine.exit")[0]).toMatchObject({ engine: "onnx-0", signal: "SIGKILL" });
    await expectWhole(run, expected);
  });

  test("that hangs is found by the watchdog, killed and replaced", async () => {
    run = faultyRun("hung", null);
    const slow = sickEngines({ delayMs: 300 });
    const running = startRun(run, "--engine-timeout", "3s", ...slow);
    const { pid } = await logged(run, running, "engine.hello");
    await logged(run, running, "batch.committed");
    process.kill(Number(pid), "SIGSTOP");
    const ended = await running.ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(events(run, "engine.exit")[0]).toMatchObject({ engine: "onnx-0", kind: "hang" });
    await expectWhole(run, expected);
  });

  test("that fails every row is stopped, not believed, and the other does the whole run", async () => {
    run = faultyRun("one-sick", null);
    const sick = sickEngines({ mode: "fail-rows", device: "1", delayMs: 500 });
    // So that each is given one; as a flag it is refused for an engine that has no use for it.
    run.machine.env.FOREBAY_DEVICES = "0,1";
    const ended = await startRun(run, ...sick).ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(new Set(events(run, "engine.row-failed").map(({ engine }) => engine))).toEqual(
      new Set(["onnx-1"]),
    );
    expect(events(run, "rows.skipped")).toEqual([]);
    await expectWhole(run, expected);
  });

  test("whose states are changed on the disk after their CRC: the pack never leaves, and is made again", async () => {
    run = faultyRun("flipped", null);
    const flip = sickEngines({ mode: "flip", once: run.machine.path("flipped-once") });
    const ended = await startRun(run, ...flip).ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(events(run, "batch.requeued").length).toBe(1);
    expect(readdirSync(run.machine.path("spool/quarantine")).length).toBe(1);
    expect(await packsOf(run)).toEqual(expected);
  });
});

test("engines that all fail every row end the run with exit 7; no row is skipped, no pack stored", async () => {
  run = faultyRun("all-sick", null);
  const ended = await startRun(run, ...sickEngines({ mode: "fail-rows" })).ended;
  expect(ended.code, ended.stderr).toBe(7);
  expect(ended.stderr).toMatch(/onnx-0/);
  expect(ended.stderr).toMatch(/not finite/);
  expect(ended.stderr).toMatch(/ {2}safe: /);
  expect(ended.stderr).toMatch(/ {2}next: /);
  expect(events(run, "rows.skipped")).toEqual([]);
  expect(await packsOf(run)).toEqual(new Map());
});

test("an engine whose checksums are never those of its states ends the run with exit 9, and stores nothing", async () => {
  run = faultyRun("wrong-crc", null);
  const ended = await startRun(run, ...sickEngines({ mode: "wrong-crc" })).ended;
  expect(ended.code, ended.stderr).toBe(9);
  expect(ended.stderr).toMatch(/spoiled or lost 3 times \(made by onnx-0, onnx-0, onnx-0\)/);
  expect(ended.stderr).toMatch(/ {2}next: /);
  expect(await packsOf(run)).toEqual(new Map());
});

describe("one row that no engine can do", () => {
  const sick = sickEngines({ mode: "fail-rows", rows: [17] });

  test("is skipped with its reason where --max-skips allows it, and everything else is stored", async () => {
    run = faultyRun("one-row", null);
    const ended = await startRun(run, "--max-skips", "5%", "--json", ...sick).ended;
    expect(ended.code, ended.stderr).toBe(3);
    expect(JSON.parse(ended.stdout)).toMatchObject({
      state: "done_with_skips",
      skipped: 1,
    });
    const verified = await run.machine.run(["verify", run.address, "--deep", "--json"]);
    expect(JSON.parse(verified.stdout)).toMatchObject({
      ok: true,
      rows: { planned: ROWS, committed: ROWS - 1, skipped: 1, missing: 0, duplicate: 0, corrupt: 0 },
    });
    const read = await run.machine.run(["read", run.address, "17"]);
    expect(read.code).toBe(3);
    expect(read.stdout).toMatch(/row 17 was skipped by the run: \S/);
    // Again: nothing to do, and the skipped row is still known.
    const again = await run.machine.run([...runArgs(run), "--max-skips", "5%", "--json"]);
    expect(JSON.parse(again.stdout)).toMatchObject({ state: "done_with_skips", skipped: 1, exit_code: 3 });
  });

  test("stops the run where --max-skips does not allow it, with everything done so far kept", async () => {
    run = faultyRun("one-row-too-many", null);
    const ended = await startRun(run, ...sick).ended;
    expect(ended.code, ended.stderr).toBe(7);
    expect(ended.stderr).toMatch(/--max-skips/);
    expect(ended.stderr).toMatch(/row 17/);
    const healthy = await startRun(run).ended;
    expect(healthy.code, healthy.stderr).toBe(0);
    await expectWhole(run, expected);
  });
});
