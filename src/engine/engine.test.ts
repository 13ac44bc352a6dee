import { spawn } from "node:child_process";
import { readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { describe, expect, onTestFinished, test } from "vitest";
import {
  FAKE_TOKEN_BYTES,
  fakeEngine,
  fakeLoad,
  fakeRequest,
  isAlive,
  temporaryDirectory,
} from "../../test/support/fake-engine.ts";
import { WoundClock } from "../../test/support/wound-clock.ts";
import { crc32c } from "../base/checksum.ts";
import { type LogEvent, makeLog, silentLog } from "../base/log.ts";
import { Engine, type EngineOptions } from "./engine.ts";
import { EngineError } from "./engine-error.ts";

async function start(args: string[], options: Partial<EngineOptions> = {}): Promise<Engine> {
  const engine = await Engine.start({
    command: fakeEngine(...args),
    label: "fake-0",
    log: silentLog,
    stderrFile: null,
    ...options,
  });
  onTestFinished(async () => void (await engine.kill()));
  return engine;
}

async function loaded(args: string[], options: Partial<EngineOptions> = {}): Promise<Engine> {
  const engine = await start(args, options);
  await engine.load(fakeLoad);
  return engine;
}

/** The error of a promise that must reject, checked to come only when the child is gone. */
async function failure(engine: Engine, promise: Promise<unknown>): Promise<EngineError> {
  let error: unknown;
  await promise.then(
    () => {},
    (e) => {
      error = e;
    },
  );
  expect(isAlive(engine.pid)).toBe(false);
  expect(error).toBeInstanceOf(EngineError);
  return error as EngineError;
}

describe("a well-behaved child", () => {
  test("greets, loads, and answers several outstanding requests, its states in their files", async () => {
    const engine = await start([]);
    expect(engine.hello).toMatchObject({ engine: "fake", pid: engine.pid, proto: 1 });
    expect(await engine.load(fakeLoad)).toMatchObject({ hidden: 8, blocks: 4, slots: { batches: 3 } });
    const directory = temporaryDirectory();
    const requests = [[1, 2, 3], [4], [5, 6]].map((rows) => fakeRequest(directory, rows));
    const seen: number[] = [];
    const answers = await Promise.all(
      requests.map((request, i) => engine.extract(request, () => seen.push(i))),
    );
    answers.forEach((answer, i) => {
      const { samples, file } = requests[i]!;
      const bytes = readFileSync(file);
      expect(answer.failed).toEqual([]);
      expect(answer.samples.map(({ row }) => row)).toEqual(samples.map(({ row }) => row));
      samples.forEach(({ offset, ids }, j) => {
        const states = bytes.subarray(offset, offset + ids.length * FAKE_TOKEN_BYTES);
        expect(crc32c(states)).toBe(answer.samples[j]!.crc32c);
        expect(states.some((byte) => byte !== 0)).toBe(true);
      });
    });
    expect(new Set(seen)).toEqual(new Set([0, 1, 2]));
  });

  test("ends by itself when it is asked to, and says so", async () => {
    const engine = await loaded([]);
    const exit = await engine.shutdown();
    expect(exit).toMatchObject({ code: 0, signal: null, kind: "stopped", killedByUs: false });
    expect(engine.usable).toBe(false);
    await expect(engine.load(fakeLoad)).rejects.toMatchObject({ kind: "stopped" });
  });

  test("is ended by SIGTERM and then SIGKILL where it does not listen", async () => {
    const clock = new WoundClock();
    const engine = await loaded(["--mode", "slow-exit"], { clock, limits: { stopGraceMs: 1000 } });
    const exited = engine.shutdown();
    clock.wind(1000);
    clock.wind(1000);
    expect(await exited).toMatchObject({ signal: "SIGKILL", kind: "stopped", killedByUs: true });
  });

  test("dies with an aborted signal, and what was asked of it rejects", async () => {
    const abort = new AbortController();
    const engine = await loaded(["--mode", "hang-first"], { signal: abort.signal });
    const answer = engine.extract(fakeRequest(temporaryDirectory(), [1]));
    abort.abort();
    expect(await failure(engine, answer)).toMatchObject({ kind: "stopped" });
  });

  test("a row it fails by name leaves the others good, and the child alive", async () => {
    const engine = await loaded(["--mode", "fail-rows", "--rows", "2"]);
    const answer = await engine.extract(fakeRequest(temporaryDirectory(), [1, 2, 3]));
    expect(answer.samples.map(({ row }) => row)).toEqual([1, 3]);
    expect(answer.failed).toMatchObject([{ row: 2, kind: "nonfinite", named: true }]);
    expect(engine.usable).toBe(true);
  });

  test("an error without rows fails all of them, unnamed", async () => {
    const engine = await loaded(["--mode", "oom"]);
    const answer = await engine.extract(fakeRequest(temporaryDirectory(), [1, 2]));
    expect(answer).toMatchObject({ samples: [], failed: [{ row: 1 }, { row: 2 }] });
    expect(answer.failed[0]).toMatchObject({ kind: "oom", retry: "smaller", named: false });
  });

  test("an error after which the child cannot be trusted is reported with its message, after its exit", async () => {
    const engine = await loaded(["--mode", "exit-70"]);
    const error = await failure(engine, engine.extract(fakeRequest(temporaryDirectory(), [1])));
    expect(error).toMatchObject({ kind: "crash", retry: "restart" });
    expect(error.message).toContain("illegal memory access");
    expect(await engine.exited).toMatchObject({ code: 70, killedByUs: false });
  });
});

describe("a child that breaks the protocol is killed, and the breach is named", () => {
  test.each([
    ["garbage", "not-json"],
    ["nan-json", "not-json"],
    ["unknown-type", "not-a-message"],
    ["endless-line", "line-too-long"],
    ["wrong-id", "wrong-id"],
    ["wrong-attempt", "wrong-attempt"],
    ["forgets", "missing-sample"],
    ["unknown-row", "unknown-row"],
    ["row-twice", "row-twice"],
    ["progress-backwards", "progress-backwards"],
  ])("%s: %s", async (mode, fault) => {
    const engine = await loaded(["--mode", mode]);
    const error = await failure(engine, engine.extract(fakeRequest(temporaryDirectory(), [1, 2])));
    expect(error).toMatchObject({ kind: "protocol", fault });
    expect(await engine.exited).toMatchObject({ kind: "protocol", fault, killedByUs: true });
  });

  test("a gate that it answers without the result asked for", async () => {
    const engine = await loaded(["--mode", "checks-nothing"]);
    const { file, samples } = fakeRequest(temporaryDirectory(), [1, 2]);
    const error = await failure(engine, engine.check({ kinds: engine.loaded!.checks, file, samples }));
    expect(error).toMatchObject({ kind: "protocol", fault: "wrong-answer" });
    expect(error.message).toMatch(/expected results of greedy, found: $/);
  });

  test("the sample that it forgot is named", async () => {
    const engine = await loaded(["--mode", "forgets"]);
    const error = await failure(engine, engine.extract(fakeRequest(temporaryDirectory(), [1, 2])));
    expect(error.rows).toEqual([2]);
  });

  test("an answer given twice ends the child, the first one stands", async () => {
    const engine = await loaded(["--mode", "twice"]);
    const answer = await engine.extract(fakeRequest(temporaryDirectory(), [1]));
    expect(answer.samples).toHaveLength(1);
    expect(await engine.exited).toMatchObject({ kind: "protocol", fault: "answered-twice" });
  });

  test("a greeting given twice", async () => {
    const engine = await start(["--mode", "hello-twice"]);
    expect(await engine.exited).toMatchObject({ kind: "protocol", fault: "hello-twice" });
  });

  test("garbage before the greeting", async () => {
    const promise = start(["--mode", "garbage-at-start"]);
    await expect(promise).rejects.toMatchObject({ kind: "protocol", fault: "not-json" });
  });

  test("a closed answers' pipe", async () => {
    const clock = new WoundClock();
    const engine = await loaded(["--mode", "close-stdout"], { clock, limits: { stopGraceMs: 500 } });
    const answer = engine.extract(fakeRequest(temporaryDirectory(), [1]));
    await clock.untilTimer(500);
    clock.wind(500);
    expect(await failure(engine, answer)).toMatchObject({ kind: "protocol", fault: "pipe-closed" });
  });
});

describe("a child that dies", () => {
  test("at its start: its last words are told", async () => {
    const promise = start(["--mode", "die-at-start"]);
    await expect(promise).rejects.toMatchObject({ kind: "start", fault: "hello-missing" });
    const end = [4, 5, 6, 7, 8, 9, 10, 11, 12].map((frame) => `    frame ${frame}\n`).join("");
    await expect(promise).rejects.toThrow(`the end of the engine's stderr:\n${end}    cannot start`);
    await expect(promise).rejects.not.toThrow("frame 3");
    await expect(promise).rejects.toMatchObject({
      brief: "engine fake-0: it exited with code 3 before its hello; its last words: cannot start",
    });
  });

  test("because there is no such program: what could not be started is told", async () => {
    const command = { name: "x", file: "/nowhere/python3", args: [], env: {} };
    const promise = Engine.start({ command, label: "x-0", log: silentLog, stderrFile: null });
    await expect(promise).rejects.toThrow("/nowhere/python3 could not be started");
  });

  test("while loading", async () => {
    const engine = await start(["--mode", "die-loading"]);
    expect(await failure(engine, engine.load(fakeLoad))).toMatchObject({ kind: "crash", op: "load" });
  });

  test("because it refuses the model: its reason is told, and that a restart will not help", async () => {
    const engine = await start(["--mode", "refuse-load"]);
    const error = await failure(engine, engine.load(fakeLoad));
    expect(error).toMatchObject({ kind: "bad-request", retry: "no" });
    expect(error.message).toContain("no such family");
  });

  test.each(["die-in-batch", "die-half"])("%s: all that was outstanding rejects", async (mode) => {
    const engine = await loaded(["--mode", mode, "--rows", "2"]);
    const directory = temporaryDirectory();
    const first = engine.extract(fakeRequest(directory, [1, 2]));
    const second = engine.extract(fakeRequest(directory, [3]));
    const [a, b] = await Promise.all([failure(engine, first), failure(engine, second)]);
    expect(a).toMatchObject({ kind: "crash", rows: [] });
    expect(b).toMatchObject({ kind: "crash", rows: [] });
  });

  test("by a SIGKILL that was not ours: out of memory on a CPU, a crash on a GPU", async () => {
    const onCpu = await loaded(["--mode", "sigkill-itself"]);
    const directory = temporaryDirectory();
    expect(await failure(onCpu, onCpu.extract(fakeRequest(directory, [1])))).toMatchObject({
      kind: "oom",
      retry: "smaller",
    });
    const onGpu = await loaded(["--mode", "sigkill-itself", "--uuid", "GPU-1"]);
    expect(await failure(onGpu, onGpu.extract(fakeRequest(directory, [1])))).toMatchObject({ kind: "crash" });
  });
});

describe("a child that hangs is ended by the watchdog", () => {
  const limits = {
    loadMs: 1_800_000,
    firstForwardMs: 900_000,
    forwardFloorMs: 60_000,
    forwardFactor: 20,
    stopGraceMs: 10_000,
  };

  test("before it greets", async () => {
    const clock = new WoundClock();
    const promise = start(["--mode", "no-hello"], { clock, limits });
    const rejected = expect(promise).rejects.toMatchObject({ kind: "hang" });
    clock.wind(limits.loadMs);
    await rejected;
  });

  test.each(["hang-loading", "beat-loading"])("while loading (%s)", async (mode) => {
    const clock = new WoundClock();
    const engine = await start(["--mode", mode], { clock, limits });
    const answer = engine.load(fakeLoad);
    clock.wind(limits.loadMs - 1);
    await new Promise((resolve) => setImmediate(resolve));
    expect(engine.usable).toBe(true);
    clock.wind(1);
    expect(await failure(engine, answer)).toMatchObject({ kind: "hang" });
  });

  test.each(["hang-first", "beat-hung"])(
    "in its first forward, which has a long limit (%s)",
    async (mode) => {
      const clock = new WoundClock();
      const engine = await loaded(["--mode", mode], { clock, limits });
      const answer = engine.extract(fakeRequest(temporaryDirectory(), [1]));
      clock.wind(limits.firstForwardMs - 1);
      await new Promise((resolve) => setImmediate(resolve));
      expect(engine.usable).toBe(true);
      clock.wind(1);
      expect(await failure(engine, answer)).toMatchObject({ kind: "hang" });
    },
  );

  test.each(["hang-later", "repeat-progress"])("after its first forward (%s)", async (mode) => {
    const clock = new WoundClock();
    const engine = await loaded(["--mode", mode], { clock, limits });
    const progress: number[] = [];
    let told = () => {};
    const advanced = new Promise<void>((resolve) => {
      told = resolve;
    });
    const answer = engine.extract(fakeRequest(temporaryDirectory(), [1, 2]), (done) => {
      progress.push(done);
      told();
    });
    await advanced;
    clock.wind(limits.forwardFloorMs - 1);
    await new Promise((resolve) => setImmediate(resolve));
    expect(engine.usable).toBe(true);
    clock.wind(1);
    expect(await failure(engine, answer)).toMatchObject({ kind: "hang" });
  });

  test("although it ignores SIGTERM", async () => {
    const clock = new WoundClock();
    const engine = await loaded(["--mode", "hang-ignoring-sigterm"], { clock, limits });
    const answer = engine.extract(fakeRequest(temporaryDirectory(), [1]));
    clock.wind(limits.firstForwardMs);
    await clock.untilTimer(limits.stopGraceMs);
    expect(isAlive(engine.pid)).toBe(true);
    clock.wind(limits.stopGraceMs);
    expect(await failure(engine, answer)).toMatchObject({ kind: "hang" });
    expect(await engine.exited).toMatchObject({ signal: "SIGKILL" });
  });

  test("and is not believed when it answers late", async () => {
    const clock = new WoundClock();
    const events: LogEvent[] = [];
    const log = makeLog([(event) => events.push(event)], () => 0);
    const engine = await loaded(["--mode", "late"], { clock, limits, log });
    const answer = engine.extract(fakeRequest(temporaryDirectory(), [1]));
    await expect.poll(() => engine.stderrTail()).toContain("waiting to be late");
    clock.wind(limits.firstForwardMs);
    expect(await failure(engine, answer)).toMatchObject({ kind: "hang" });
    expect(events.map(({ event }) => event)).toContain("engine.late-answer");
  });
});

describe("stderr", () => {
  test("goes to a file that is rotated at its cap; the last lines are kept, made harmless", async () => {
    const stderrFile = join(temporaryDirectory(), "fake-0.log");
    const engine = await loaded(["--mode", "flood-stderr"], { stderrFile, stderrBytesMax: 50_000 });
    const { stderrTail } = await engine.shutdown();
    expect(stderrTail).toHaveLength(200);
    expect(stderrTail.at(-1)).toBe("noise 19999 red");
    for (const file of [stderrFile, `${stderrFile}.1`]) {
      expect(statSync(file).size).toBeLessThanOrEqual(50_000 + 65_536);
      expect(statSync(file).mode & 0o777).toBe(0o600);
    }
    expect(readFileSync(stderrFile, "utf8")).toContain("noise 19999");
  });

  test("that cannot be written to its file does not stop the engine", async () => {
    const stderrFile = join(temporaryDirectory(), "missing", "fake-0.log");
    const engine = await loaded(["--mode", "flood-stderr"], { stderrFile });
    expect((await engine.shutdown()).stderrTail).toHaveLength(200);
  });
});

test("a child whose parent is killed ends by itself", async () => {
  const child = fakeEngine();
  const parent = spawn(
    process.execPath,
    [fileURLToPath(new URL("../../test/support/children/parent.mjs", import.meta.url)), ...child.args],
    { stdio: ["ignore", "pipe", "inherit"] },
  );
  const [line] = await new Promise<string[]>((resolve) =>
    createInterface({ input: parent.stdout! }).once("line", (text) => resolve([text])),
  );
  const pid = Number(line);
  onTestFinished(() => {
    if (isAlive(pid)) process.kill(pid, "SIGKILL");
  });
  expect(isAlive(pid)).toBe(true);
  parent.kill("SIGKILL");
  await expect.poll(() => isAlive(pid), { timeout: 10_000, interval: 20 }).toBe(false);
});
