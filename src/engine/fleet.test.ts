import { readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import {
  FAKE_HIDDEN,
  FAKE_TAPS,
  FAKE_TOKEN_BYTES,
  fakeEngine,
  fakeLoad,
  fakeRequest,
  isAlive,
  temporaryDirectory,
} from "../../test/support/fake-engine.ts";
import { crc32c } from "../base/checksum.ts";
import { RunError } from "../base/errors.ts";
import { type LogEvent, makeLog } from "../base/log.ts";
import { Fleet, type FleetOptions } from "./fleet.ts";
import type { BatchOutcome, Work } from "./work.ts";

interface Ran {
  fleet: Fleet;
  outcomes: BatchOutcome[];
  events: LogEvent[];
  /** Who was given which batch first. */
  pulled: { engine: string; batch: number }[];
  attempts: number;
  give: FleetOptions["next"];
  run: Promise<void>;
}

/** Engines of the given arguments over the given batches; every states outcome is checked against its file. */
function begin(engines: string[][], batches: number[][], options: Partial<FleetOptions> = {}): Ran {
  const directory = temporaryDirectory();
  const todo: Work[] = batches.map((rows, batch) => ({ batch, ...fakeRequest(directory, rows) }));
  const events: LogEvent[] = [];
  const ran: Ran = { outcomes: [], events, pulled: [], attempts: 0 } as unknown as Ran;
  ran.give = async (engine) => {
    const work = todo.shift();
    if (!work) return null;
    ran.pulled.push({ engine, batch: work.batch });
    return work;
  };
  ran.fleet = new Fleet({
    engines: engines.map((args, shard) => ({
      label: `fake-${shard}`,
      shard,
      command: fakeEngine(...args),
      load: fakeLoad,
    })),
    shape: { taps: FAKE_TAPS.length, hidden: FAKE_HIDDEN },
    log: makeLog([(event) => events.push(event)], Date.now),
    stderrDirectory: directory,
    scratchDirectory: join(directory, "scratch"),
    skipsMax: 10,
    restart: { baseMs: 1, capMs: 2 },
    limits: { stopGraceMs: 200 },
    next: ran.give,
    newAttempt: async (work) => {
      ran.attempts += 1;
      const attempt = work.attempt + 1;
      const file = work.file.replace(/\d+\.part$/, `${attempt}.part`);
      writeFileSync(file, Buffer.alloc(readFileSync(work.file).length));
      return { ...work, attempt, file };
    },
    done: (outcome) => {
      ran.outcomes.push(outcome);
      if (outcome.kind === "no-space") todo.push(outcome.work);
    },
    ...options,
  });
  ran.run = ran.fleet.run();
  ran.run.catch(() => {});
  onTestFinished(() => ran.fleet.stop(0));
  return ran;
}

async function runAll(...args: Parameters<typeof begin>): Promise<Ran> {
  const ran = begin(...args);
  await ran.run;
  return ran;
}

/** Each row of the batches: "ok" (its bytes in the file are what the engine told), or why it was skipped. */
function verdicts({ outcomes }: Ran): Map<number, string> {
  const rows = new Map<number, string>();
  for (const outcome of outcomes) {
    if (outcome.kind !== "states") continue;
    const bytes = readFileSync(outcome.work.file);
    for (const sample of outcome.samples) {
      const { offset } = outcome.work.samples.find(({ row }) => row === sample.row)!;
      const states = bytes.subarray(offset, offset + sample.tokens * FAKE_TOKEN_BYTES);
      expect(crc32c(states)).toBe(sample.crc32c);
      expect(rows.has(sample.row)).toBe(false);
      rows.set(sample.row, "ok");
    }
    for (const { row, reason } of outcome.skipped) rows.set(row, reason);
  }
  return rows;
}

/** A `next` that gives nothing to anybody before the second engine is up. */
function bothUp(ran: () => Ran): FleetOptions["next"] {
  return async (engine, signal) => {
    await expect.poll(() => ran().fleet.status()[1]!.pid, { interval: 5 }).not.toBeNull();
    return ran().give(engine, signal);
  };
}

/** As the kernel does with a process that waits in a driver: the signal is taken, and nothing comes of it. */
function makeUnkillable(ran: () => Ran, engine: string): void {
  const kill = process.kill.bind(process);
  const pid = () => ran().events.find((e) => e.event === "engine.hello" && e.engine === engine)?.pid;
  const spy = vi
    .spyOn(process, "kill")
    .mockImplementation((target, signal) => Math.abs(target) === pid() || kill(target, signal));
  onTestFinished(() => {
    spy.mockRestore();
    // It may have ended with its pipes.
    if (isAlive(Number(pid()))) kill(-Number(pid()), "SIGKILL");
  });
}

/** Short enough to wait for, long enough for a busy machine. */
const IMPATIENT = { firstForwardMs: 1_000, forwardFloorMs: 1_000, stopGraceMs: 200 };

const batches = Array.from({ length: 12 }, (_, b) => [b * 3, b * 3 + 1, b * 3 + 2]);
const ALL_OK = new Map(batches.flat().map((row) => [row, "ok"]));
const count = (ran: Ran, event: string) => ran.events.filter((e) => e.event === event).length;
const skips = ({ outcomes }: Ran) =>
  outcomes.flatMap((outcome) => (outcome.kind === "states" ? outcome.skipped : [])).length;
const sorted = (rows: Map<number, string>) => new Map([...rows].sort(([a], [b]) => a - b));

describe("healthy engines", () => {
  test("share the batches, each done once, and leave no process behind", async () => {
    const pids: number[] = [];
    const ran = begin([[], []], batches, {
      // Neither is given anything before both are up.
      prepare: async (engine) => void pids.push(engine.pid),
      next: bothUp(() => ran),
    });
    await ran.run;
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.outcomes).toHaveLength(batches.length);
    const [a, b] = ran.fleet.status();
    expect(a!.batches_done).toBeGreaterThan(0);
    expect(b!.batches_done).toBeGreaterThan(0);
    expect(a!.batches_done + b!.batches_done).toBe(batches.length);
    expect(a).toMatchObject({ state: "stopped", restarts: 0, last_error: null, tokens_total: 0 });
    const hellos = ran.events.filter((e) => e.event === "engine.hello").map((e) => Number(e.pid));
    expect(hellos).toHaveLength(2);
    expect(hellos[0]).toBe(pids[0]);
    for (const pid of hellos) expect(isAlive(pid)).toBe(false);
    expect(ran.fleet.stage.seconds().busy).toBeGreaterThan(0);
  });

  test("the first loads, and passes the gate, before the second starts", async () => {
    const order: string[] = [];
    const ran = begin([[], []], batches, {
      prepare: async (engine) => {
        order.push(engine.label);
        expect(ran.fleet.status()[1]).toMatchObject({ state: "starting", pid: null });
        expect(count(ran, "engine.hello")).toBe(1);
      },
      next: bothUp(() => ran),
    });
    await ran.run;
    expect(order).toEqual(["fake-0"]);
    expect(count(ran, "engine.loaded")).toBe(2);
  });

  test("a gate that fails stops the run before any batch", async () => {
    const ran = begin([[], []], batches, {
      prepare: async () => {
        throw new Error("tap 3 is off by one");
      },
    });
    await expect(ran.run).rejects.toThrow("off by one");
    expect(ran.pulled).toEqual([]);
  });

  test("get at most `slots` batches at once", async () => {
    const tokensOf = (rows: number[]) => rows.reduce((sum, row) => sum + 3 + (row % 5), 0);
    const perBatchMax = Math.max(...batches.map(tokensOf));
    const inEngine: number[] = [];
    const ran = begin([["--slots", "2"]], batches, {
      next: (engine, signal) => {
        inEngine.push(ran.fleet.status()[0]!.tokens_total);
        return ran.give(engine, signal);
      },
    });
    await ran.run;
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    // One more is asked for only while at most one is in it; and it is not left empty between two.
    expect(Math.max(...inEngine)).toBeLessThanOrEqual(perBatchMax);
    expect(inEngine[1]).toBeGreaterThan(0);
  });

  test("no batches at all: it ends", async () => {
    const ran = await runAll([[], []], []);
    expect(ran.outcomes).toEqual([]);
  });
});

describe("an engine that dies", () => {
  test.each(["die-in-batch", "die-half", "exit-70", "garbage", "nan-json", "forgets", "wrong-id", "twice"])(
    "(%s) once: the batch is done anew in another file, nothing is lost or skipped",
    async (mode) => {
      const countFile = join(temporaryDirectory(), "lives");
      const ran = await runAll([["--mode", mode, "--lives", "1", "--count", countFile]], batches);
      expect(sorted(verdicts(ran))).toEqual(ALL_OK);
      expect(ran.fleet.status()[0]!.restarts).toBe(1);
      expect(skips(ran)).toBe(0);
    },
  );

  test.each(["hang-first", "beat-hung", "repeat-progress", "hang-ignoring-sigterm", "late"])(
    "(%s) of the watchdog: the same",
    async (mode) => {
      const countFile = join(temporaryDirectory(), "lives");
      const ran = await runAll([["--mode", mode, "--lives", "1", "--count", countFile]], batches, {
        limits: IMPATIENT,
      });
      expect(sorted(verdicts(ran))).toEqual(ALL_OK);
      expect(ran.events.find((e) => e.event === "engine.exit")).toMatchObject({ kind: "hang" });
    },
  );

  test.each(["die-at-start", "die-loading"])("(%s) twice: it is started until it lives", async (mode) => {
    const countFile = join(temporaryDirectory(), "lives");
    const ran = await runAll([["--mode", mode, "--lives", "2", "--count", countFile]], batches);
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.fleet.status()[0]!.restarts).toBe(2);
  });

  test("again and again: it is given up, and the others do its work", async () => {
    const ran = await runAll([[], ["--mode", "die-loading"]], batches);
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    const [good, bad] = ran.fleet.status();
    expect(good!.batches_done).toBe(batches.length);
    expect(["failed", "stopped"]).toContain(bad!.state);
  });

  test("again and again, and there is no other: the run stops, saying why, with the end of its stderr", async () => {
    const ran = begin([["--mode", "die-at-start"]], batches);
    await expect(ran.run).rejects.toMatchObject({ name: "EngineError", exit: 7 });
    await expect(ran.run).rejects.toThrow("died 5 times in a row");
    await expect(ran.run).rejects.toThrow("\n    frame 12\n    cannot start");
    expect(ran.outcomes).toEqual([]);
    const status = ran.fleet.status()[0]!;
    expect(status).toMatchObject({ state: "failed", restarts: 4 });
    expect(status.last_error).not.toContain("\n");
  });

  test("because the model is refused: the run stops at once, with its reason", async () => {
    const ran = begin([["--mode", "refuse-load"], []], batches);
    await expect(ran.run).rejects.toThrow("no such family");
    expect(count(ran, "engine.hello")).toBe(1);
  });

  test("and is refused when it comes back: it is given up with the reason, and the others do its work", async () => {
    const countFile = join(temporaryDirectory(), "lives");
    const dies = ["--mode", "die-in-batch", "--lives", "1", "--later", "refuse-load", "--count", countFile];
    let ran: Ran;
    const next: FleetOptions["next"] = async (engine, signal) => {
      if (engine === "fake-1")
        await expect.poll(() => count(ran, "engine.given-up"), { interval: 5 }).toBe(1);
      return ran.give(engine, signal);
    };
    ran = begin([dies, []], batches, { next });
    await ran.run;
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.fleet.status()[0]).toMatchObject({
      state: "failed",
      last_error: expect.stringMatching(/no such family/),
    });
    expect(skips(ran)).toBe(0);
  });

  test("not even by SIGKILL is given up, its batch done anew by another, and the run is not held", async () => {
    let ran: Ran;
    makeUnkillable(() => ran, "fake-0");
    const limits = { ...IMPATIENT, unkillableMs: 100 };
    ran = begin([["--mode", "hang-first"], []], batches, { limits, next: bothUp(() => ran) });
    await ran.run;
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.fleet.status()[0]).toMatchObject({
      state: "failed",
      restarts: 0,
      last_error: expect.stringMatching(/SIGKILL did not end it/),
    });
    expect(ran.attempts).toBeGreaterThanOrEqual(1);
  });

  test("not even by SIGKILL while it loads is given up, and the next is the first", async () => {
    let ran: Ran;
    makeUnkillable(() => ran, "fake-0");
    const limits = { ...IMPATIENT, loadMs: 3_000, unkillableMs: 100 };
    ran = begin([["--mode", "hang-loading"], []], batches, { limits });
    await ran.run;
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.fleet.status()[0]).toMatchObject({
      state: "failed",
      restarts: 0,
      last_error: expect.stringMatching(/SIGKILL did not end it/),
    });
    expect(ran.events.filter((e) => e.event === "engine.hello" && e.engine === "fake-0").length).toBe(1);
  });

  test("because memory ran out: it comes back with half of what it took in a forward, however many batches were in it", async () => {
    const countFile = join(temporaryDirectory(), "lives");
    const args = ["--mode", "sigkill-itself", "--rows", "4", "--forward-ms", "20"];
    const ran = await runAll([[...args, "--lives", "2", "--count", countFile]], batches);
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    const loaded = ran.events.filter((e) => e.event === "engine.loaded");
    expect(loaded.map((e) => e.forward_tokens)).toEqual([400_000, 200_000, 100_000]);
    expect(count(ran, "engine.smaller")).toBe(2);
  });
});

describe("a second round", () => {
  const rest = Array.from({ length: 4 }, (_, b) => [100 + b * 2, 101 + b * 2]);

  test("does not start what was given up in the first, nor forget what it did", async () => {
    const first = begin([["--mode", "fail-rows"], []], batches, {
      culpritsMax: 2,
      next: bothUp(() => first),
    });
    await first.run;
    const given = first.fleet.status();
    expect(given[0]!.state).toBe("failed");
    const second = await runAll([["--mode", "fail-rows"], []], rest, { before: first.fleet });
    expect([...verdicts(second).values()]).toEqual(rest.flat().map(() => "ok"));
    expect(second.events.filter((e) => e.event === "engine.hello").map((e) => e.engine)).toEqual(["fake-1"]);
    const [bad, good] = second.fleet.status();
    expect(bad).toMatchObject({ state: "failed", last_error: given[0]!.last_error });
    expect(good!.batches_done).toBe(given[1]!.batches_done + rest.length);
  });

  test("has the skips that the first left", async () => {
    const sick = ["--mode", "fail-rows", "--rows", "4,100"];
    const first = await runAll([sick], batches, { skipsMax: 1 });
    expect(skips(first)).toBe(1);
    const second = begin([sick], rest, { skipsMax: 1, before: first.fleet });
    await expect(second.run).rejects.toThrow("row 100 would be one skip more than --max-skips allows");
  });
});

describe("between the engines and the caller", () => {
  test("where the first engine cannot start, the gate is passed by the next before any work", async () => {
    const gated: string[] = [];
    const ran = begin([["--mode", "die-loading"], [], []], batches, {
      prepare: async (engine) => {
        expect(ran.pulled).toEqual([]);
        gated.push(engine.label);
      },
    });
    await ran.run;
    expect(gated).toEqual(["fake-1"]);
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
  });

  test("an engine that dies while `next` is waiting comes back, and the batch that needs it is not stuck", async () => {
    // The spool has room for one batch: `next` waits until the one that is out is done.
    const countFile = join(temporaryDirectory(), "lives");
    let isOut = false;
    let wake = () => {};
    const ran: Ran = begin([["--mode", "die-in-batch", "--lives", "2", "--count", countFile]], batches, {
      next: async (engine, signal) => {
        while (isOut) {
          await new Promise<void>((resolve) => {
            wake = resolve;
          });
        }
        const work = await ran.give(engine, signal);
        isOut = work !== null;
        return work;
      },
      done: (outcome) => {
        ran.outcomes.push(outcome);
        isOut = false;
        wake();
      },
    });
    await ran.run;
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.fleet.status()[0]!.restarts).toBe(2);
  });

  test("no room for a new attempt gives the batch back", async () => {
    const countFile = join(temporaryDirectory(), "lives");
    const outcomes: BatchOutcome[] = [];
    const ran = begin([["--mode", "die-in-batch", "--lives", "1", "--count", countFile]], [[1], [2]], {
      newAttempt: async () => {
        throw new RunError({ op: "make part", subject: "x", message: "the disk is full", remedy: "retry" });
      },
      done: (outcome) => {
        outcomes.push(outcome);
      },
    });
    await ran.run;
    expect(outcomes[0]).toMatchObject({ kind: "no-space", reason: "the disk is full" });
    expect(outcomes).toHaveLength(2);
  });

  test("a `next`, `newAttempt` or `done` that throws stops the run with its error; every batch is told once", async () => {
    const fail = async (): Promise<never> => {
      throw new Error("a bug of the caller");
    };
    for (const broken of [{ next: fail }, { newAttempt: fail }, { done: fail }]) {
      const countFile = join(temporaryDirectory(), "lives");
      const ran = begin([["--mode", "die-in-batch", "--lives", "1", "--count", countFile]], batches, broken);
      await expect(ran.run).rejects.toThrow("a bug of the caller");
      expect(new Set(ran.outcomes.map(({ work }) => work.batch)).size).toBe(ran.outcomes.length);
    }
  });
});

describe("a row that cannot be done", () => {
  test.each([
    ["fail-rows", "nonfinite"],
    ["nan", "bad-states"],
    ["zeros", "bad-states"],
    ["constant", "bad-states"],
    ["too-few-bytes", "bad-states"],
    ["wrong-tokens", "bad-states"],
    ["other-sample", "bad-states"],
    ["die-in-batch", "crash"],
    ["oom", "oom"],
  ])("(%s) is skipped, and only it, after two fresh engines failed it", async (mode, kind) => {
    const bad = ["--mode", mode, "--rows", "13"];
    const ran = await runAll([bad, bad], batches);
    const rows = sorted(verdicts(ran));
    expect(rows.get(13)).toContain(`${kind}: `);
    rows.set(13, "ok");
    expect(rows).toEqual(ALL_OK);
    expect(skips(ran)).toBe(1);
    const lives = ran.events.filter((e) => e.event === "engine.row-failed" && e.row === 13);
    expect(lives.length).toBeGreaterThanOrEqual(3);
  });

  test("with a single engine, and a row that hangs it: the same", async () => {
    const ran = await runAll([["--mode", "hang-first", "--rows", "13"]], batches, { limits: IMPATIENT });
    expect(verdicts(ran).get(13)).toContain("hang: ");
    expect(skips(ran)).toBe(1);
  });

  test("alone in its batch, the first of the run: others go first", async () => {
    const ran = await runAll([["--mode", "fail-rows", "--rows", "0"]], [[0], [1], [2]]);
    expect(sorted(verdicts(ran))).toEqual(
      new Map([
        [0, "nonfinite: states are not finite"],
        [1, "ok"],
        [2, "ok"],
      ]),
    );
  });

  test("is done by the engine that can", async () => {
    const ran = await runAll([["--mode", "fail-rows", "--rows", "1,13,20"], []], batches);
    expect(sorted(verdicts(ran))).toEqual(ALL_OK);
    expect(ran.attempts).toBe(0);
  });

  test("is one too many: the run stops, the other batches released", async () => {
    const ran = begin([["--mode", "fail-rows", "--rows", "4,13"]], batches, { skipsMax: 1 });
    await expect(ran.run).rejects.toThrow("--max-skips");
    expect(new Set(ran.outcomes.map(({ kind }) => kind))).toContain("released");
    expect(ran.outcomes).toHaveLength(ran.pulled.length);
  });
});

describe("a sick engine", () => {
  test.each(["fail-rows", "nan", "zeros", "constant-lie", "too-few-bytes"])(
    "(%s, every row) is stopped, not believed: nothing is skipped",
    async (mode) => {
      const ran = await runAll([["--mode", mode], []], batches);
      expect(sorted(verdicts(ran))).toEqual(ALL_OK);
      expect(skips(ran)).toBe(0);
      expect(ran.fleet.status()[0]!.state).toBe("failed");
      expect(count(ran, "engine.given-up")).toBe(1);
    },
  );

  test("that is the only one stops the run", async () => {
    const ran = begin([["--mode", "fail-rows"]], batches);
    await expect(ran.run).rejects.toThrow("rows in a row");
    expect(skips(ran)).toBe(0);
  });

  test("that mixes samples up when they come together does not agree with itself, and is stopped", async () => {
    const canary = { everyBatches: 2, tolerance: 0.1, strikesMax: 2 };
    const many = Array.from({ length: 30 }, (_, b) => [b * 3, b * 3 + 1, b * 3 + 2]);
    const mixing = begin([["--mode", "mixes-up"]], many, { canary });
    await expect(mixing.run).rejects.toThrow("again gave other states");
    expect(count(mixing, "engine.canary-mismatch")).toBeGreaterThanOrEqual(2);
    const honest = await runAll([[]], many, { canary });
    expect(count(honest, "engine.canary-mismatch")).toBe(0);
    expect(verdicts(honest).size).toBe(90);
  });

  test("is looked at as often as it should be, also while it is kept full", async () => {
    const many = Array.from({ length: 30 }, (_, b) => [b * 3, b * 3 + 1, b * 3 + 2]);
    const patient = { everyBatches: 2, tolerance: 0.1, strikesMax: 100 };
    const ran = await runAll([["--mode", "mixes-up"]], many, { canary: patient });
    expect(count(ran, "engine.canary-mismatch")).toBe(15);
  });

  test.each([
    ["drift", "engine.drift-jump"],
    ["near-constant", "engine.drift-constant"],
    ["repeats", "engine.drift-repeated"],
  ])(
    "that lies (%s) in a way only the run's statistics show is stopped, its packs kept",
    async (mode, event) => {
      const many = Array.from({ length: 60 }, (_, b) => [b * 3, b * 3 + 1, b * 3 + 2]);
      const ran = begin([["--mode", mode, "--rows", many.slice(40).flat().join(",")]], many);
      await expect(ran.run).rejects.toThrow("drifted in 3 packs");
      expect(count(ran, event)).toBeGreaterThanOrEqual(3);
      expect(verdicts(ran).size).toBeGreaterThanOrEqual(43 * 3);
    },
  );
});

test("a full disk is nobody's fault: the batch is given back and taken again when there is room", async () => {
  let isFull = true;
  const countFile = join(temporaryDirectory(), "lives");
  const args = ["--mode", "enospc", "--rows", "13", "--lives", "1", "--count", countFile];
  const outcomes: BatchOutcome[] = [];
  const ran = begin([args], batches, {
    done: (outcome) => {
      outcomes.push(outcome);
      if (outcome.kind === "no-space") isFull = false;
    },
  });
  await ran.run;
  expect(isFull).toBe(false);
  expect(outcomes.filter(({ kind }) => kind === "no-space")).toHaveLength(1);
  expect(outcomes.filter(({ kind }) => kind === "states")).toHaveLength(batches.length - 1);
  expect(ran.fleet.status()[0]).toMatchObject({ restarts: 0, last_error: null });
});

test("nor is it where an engine is to be probed: the same", async () => {
  const scratchDirectory = temporaryDirectory();
  const probe = join(scratchDirectory, "probe-fake-0.bin");
  symlinkSync("/dev/full", probe);
  const back: Work[] = [];
  const ran: Ran = begin([["--mode", "fail-rows", "--rows", "13"]], [[13], [14]], {
    scratchDirectory,
    next: async (engine, signal) => (await ran.give(engine, signal)) ?? back.shift() ?? null,
    done: (outcome) => {
      ran.outcomes.push(outcome);
      if (outcome.kind !== "no-space") return;
      rmSync(probe);
      back.push(outcome.work);
    },
  });
  await ran.run;
  expect(ran.outcomes.map(({ kind }) => kind)).toEqual(["states", "no-space", "states"]);
  expect(count(ran, "engine.probe-failed")).toBe(0);
  expect(verdicts(ran).get(13)).toContain("nonfinite: ");
});

test("a full disk does not stop a run by its canary", async () => {
  const directory = temporaryDirectory();
  for (const row of batches.flat()) symlinkSync("/dev/full", join(directory, `canary-fake-0-${row}.bin`));
  const canary = { everyBatches: 1, tolerance: 0.1, strikesMax: 1 };
  const ran = await runAll([["--mode", "mixes-up"]], batches, { canary, scratchDirectory: directory });
  expect(sorted(verdicts(ran))).toEqual(ALL_OK);
});

describe("stop", () => {
  test("finishes what is in the engines and claims no more", async () => {
    const ran = begin([["--forward-ms", "5"]], batches);
    await expect.poll(() => ran.outcomes.length).toBeGreaterThan(0);
    await ran.fleet.stop(10_000);
    await ran.run;
    expect(ran.outcomes.every(({ kind }) => kind === "states")).toBe(true);
    expect(ran.outcomes).toHaveLength(ran.pulled.length);
    expect(ran.pulled.length).toBeLessThan(batches.length);
  });

  test("releases what is not finished in time, once nothing writes any more", async () => {
    const ran = begin([["--mode", "hang-ignoring-sigterm"]], batches, { limits: { firstForwardMs: 60_000 } });
    await expect.poll(() => ran.fleet.status()[0]!.tokens_total).toBeGreaterThan(0);
    const { pid } = ran.fleet.status()[0]!;
    await ran.fleet.stop(50);
    await ran.run;
    expect(isAlive(pid!)).toBe(false);
    expect(ran.outcomes.map(({ kind }) => kind)).toEqual(ran.pulled.map(() => "released"));
  });

  test("while the engine is loading, or waits for work that does not come", async () => {
    const loading = begin([["--mode", "hang-loading"]], batches);
    await expect.poll(() => loading.fleet.status()[0]!.state).toBe("loading");
    await loading.fleet.stop(0);
    await loading.run;
    const waiting = begin([[]], [], {
      next: (_, signal) =>
        new Promise((_resolve, reject) => {
          signal.addEventListener("abort", () => reject(signal.reason));
        }),
    });
    await expect.poll(() => waiting.fleet.status()[0]!.state).toBe("idle");
    await waiting.fleet.stop(0);
    await waiting.run;
    expect(waiting.fleet.stage.seconds().blocked).toBeGreaterThanOrEqual(0);
  });
});

const SEED = Number(process.env.FOREBAY_SEED ?? Math.floor(Math.random() * 1e9));

test(`three engines that each misbehave at random in their first life: every row once, none skipped (FOREBAY_SEED=${SEED})`, async () => {
  const modes = [
    "die-in-batch", "die-half", "garbage", "forgets", "wrong-attempt", "hang-first", "nan", "other-sample", "fail-rows",
    "oom", "sigkill-itself", "die-loading", "twice",
  ]; // biome-ignore format: a list to read
  let state = SEED;
  const pick = (n: number) => {
    state = (Math.imul(state, 1_103_515_245) + 12_345) >>> 0;
    return (state >>> 8) % n;
  };
  const directory = temporaryDirectory();
  // Each row fails in one engine at most: one that two fresh engines fail would rightly be skipped.
  const badRows = (shard: number) => batches.flat().filter((row) => row % 3 === shard && pick(2) === 0);
  const engines = [0, 1, 2].map((shard) => [
    ...["--mode", modes[pick(modes.length)]!, "--lives", "1"],
    ...["--rows", badRows(shard).join(",") || String(shard)],
    ...["--count", join(directory, `lives-${shard}`)],
  ]);
  const ran = await runAll(engines, batches, { culpritsMax: 1_000, limits: IMPATIENT });
  expect(sorted(verdicts(ran))).toEqual(ALL_OK);
}, 60_000);
