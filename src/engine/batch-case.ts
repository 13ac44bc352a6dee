import { EXIT, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { refusedRows, type StatesShape } from "./check-states.ts";
import type { Clock } from "./clock.ts";
import { EngineError } from "./engine-error.ts";
import type { Lane } from "./lane.ts";
import type { EnginePool } from "./pool.ts";
import type { ExtractSample, SampleStates } from "./protocol.ts";
import { nextStep, type RetryStep, type Trial, type TrialFailure } from "./retry.ts";
import type { SelfWatch } from "./self-watch.ts";
import type { BatchOutcome, SkippedRow, Work, WorkSource } from "./work.ts";

export interface CaseTools {
  pool: EnginePool;
  watch: SelfWatch;
  shape: StatesShape;
  log: Log;
  clock: Clock;
  /** Rows that this session may still skip, over all batches. */
  skips: { left: number };
  knownGoodWaitMs: number;
  newAttempt: WorkSource["newAttempt"];
  /** Throws `Released` once the fleet is stopping. */
  releaseIfStopping: () => void;
  /** Whether a row of another batch may still pass and prove an engine. */
  othersMayPass: () => boolean;
}

/** Thrown inside to unwind a batch that will not be finished. */
export class Released extends Error {}
/** The same where there was no room for its next attempt. */
class NoSpace extends Error {}

/** One request's rows, and what is known of the engine. */
interface Asking {
  rows: readonly number[];
  alone: boolean;
  proven: boolean;
}

interface Answered {
  passed: SampleStates[];
  failures: TrialFailure[];
  died: boolean;
}

/** A batch on its way through the engines: its trials so far, and the steps that retry.ts decides on. */
export class BatchCase {
  /** Nothing has passed yet that could prove an engine to it. */
  waitsForGood = false;
  readonly #tools: CaseTools;
  readonly #good = new Map<number, SampleStates>();
  readonly #skipped = new Map<number, string>();
  readonly #trials: Trial[] = [];
  readonly #seconds = { forward: 0, write: 0 };
  #work: Work;
  /** The last trial ended in the child's death: its file is not to be used again. */
  #died = false;
  #last: Lane | null = null;

  constructor(work: Work, tools: CaseTools) {
    this.#work = work;
    this.#tools = tools;
  }

  /** As last attempted. */
  get work(): Work {
    return this.#work;
  }

  /** From its first trial to its outcome. Throws `Released`, or what stops the run. */
  async carry(preferred: Lane): Promise<BatchOutcome> {
    try {
      return await this.#carry(preferred);
    } catch (error) {
      if (error instanceof NoSpace) return this.#noSpace(error.message);
      throw error;
    }
  }

  async #carry(preferred: Lane): Promise<BatchOutcome> {
    const { pool, skips, releaseIfStopping } = this.#tools;
    releaseIfStopping();
    await this.#firstTrial(preferred);
    for (;;) {
      const step = nextStep({
        rows: this.#work.samples.map(({ row, ids }) => ({ row, tokens: ids.length })),
        good: new Set(this.#good.keys()),
        skipped: new Set(this.#skipped.keys()),
        trials: this.#trials,
        discredited: pool.discredited,
        skipsLeft: skips.left,
        hasKnownGood: pool.knownGood !== null,
      });
      switch (step.kind) {
        case "finish":
          return this.#finish();
        case "no-space":
          return this.#noSpace(step.reason);
        case "stop":
          throw stopError(step, this.#work);
        case "skip":
          this.#skip(step.rows);
          break;
        case "wait-for-good":
          await this.#waitForGood(step.otherwise);
          break;
        case "try":
          await this.#retry(step);
          break;
      }
    }
  }

  async #firstTrial(preferred: Lane): Promise<void> {
    // Between the pull and now it may have died, been filled or held: any other with room will do.
    let lane = preferred;
    while (!lane.up || !lane.hasRoom) lane = await this.#tools.pool.free(preferred);
    const rows = this.#work.samples.map(({ row }) => row);
    await this.#try(lane, { rows, alone: false, proven: false });
  }

  async #retry(step: Extract<RetryStep, { kind: "try" }>): Promise<void> {
    const { pool, newAttempt, releaseIfStopping } = this.#tools;
    releaseIfStopping();
    if (this.#died) {
      this.#work = await noSpaceIfFull(() => newAttempt(this.#work));
      this.#died = false;
    }
    const lane = await pool.hold(step.where, this.#trials.at(-1)!.livesStarted);
    const { life } = lane;
    try {
      let proven = false;
      for (const rows of step.groups) {
        const isProbed = rows.some((row) => step.probed.has(row));
        if (isProbed && !proven) proven = await noSpaceIfFull(() => pool.probe(lane));
        if ((isProbed && !proven) || !lane.up || lane.life !== life) return;
        if (!(await this.#try(lane, { rows, alone: true, proven }))) return;
        proven = true;
      }
    } finally {
      pool.release(lane);
    }
  }

  /** One request; true where all its rows passed. */
  async #try(lane: Lane, asking: Asking): Promise<boolean> {
    const { pool, log, releaseIfStopping } = this.#tools;
    const { life } = lane;
    const wanted = new Set(asking.rows);
    const asked = this.#work.samples.filter(({ row }) => wanted.has(row));
    const { passed, failures, died } = await this.#ask(lane, asked);
    this.#last = lane;
    if (died) {
      this.#died = true;
      this.#good.clear();
    }
    for (const sample of passed) this.#good.set(sample.row, sample);
    const trial: Trial = {
      ...asking,
      engine: lane.label,
      life,
      livesStarted: pool.lives,
      passed: passed.map(({ row }) => row),
      failures,
    };
    this.#trials.push(trial);
    for (const { row, kind, reason } of failures.slice(0, 20)) {
      log.warn("engine.row-failed", { engine: lane.label, batch: this.#work.batch, row, kind, reason });
    }
    pool.judge(lane, trial, died);
    pool.rememberGood(asked.filter(({ row }) => this.#good.has(row)));
    // An engine that we killed to stop, and not because of an illness of its own, leaves its batches undone.
    if (failures.some(({ kind }) => kind === "stopped")) releaseIfStopping();
    return failures.length === 0;
  }

  /** What the engine says of `asked`, and what of that is refused. */
  async #ask(lane: Lane, asked: ExtractSample[]): Promise<Answered> {
    const { pool, shape } = this.#tools;
    const { attempt, file } = this.#work;
    try {
      const answer = await pool.ask(lane, { attempt, file, samples: asked });
      const failures: TrialFailure[] = answer.failed.map(({ message, ...failure }) => ({
        ...failure,
        reason: message,
      }));
      const failedRows = new Set(failures.map(({ row }) => row));
      const answered = asked.filter(({ row }) => !failedRows.has(row));
      for (const { row, reason } of refusedRows(answered, answer.samples, shape)) {
        failures.push({ row, kind: "bad-states", errno: null, reason, named: true });
      }
      const bad = new Set(failures.map(({ row }) => row));
      this.#seconds.forward += answer.seconds.forward ?? 0;
      this.#seconds.write += answer.seconds.write ?? 0;
      return { passed: answer.samples.filter(({ row }) => !bad.has(row)), failures, died: false };
    } catch (error) {
      if (!(error instanceof EngineError)) throw error;
      const { kind, errno, brief: reason, rows } = error;
      const failures = asked.map(({ row }) => ({ row, kind, errno, reason, named: rows.includes(row) }));
      return { passed: [], failures, died: true };
    }
  }

  #skip(rows: readonly SkippedRow[]): void {
    const { skips, log } = this.#tools;
    for (const { row, reason } of rows) {
      this.#skipped.set(row, reason);
      skips.left -= 1;
      log.warn("engine.row-skipped", { batch: this.#work.batch, row, reason });
    }
  }

  async #finish(): Promise<BatchOutcome> {
    const { watch } = this.#tools;
    const work = this.#work;
    const lane = this.#last!;
    await watch.canary(lane, work, new Set(this.#good.keys()));
    const samples = work.samples.flatMap(({ row }) => this.#good.get(row) ?? []);
    lane.done.batches += 1;
    lane.done.samples += samples.length;
    lane.done.tokens += samples.reduce((sum, { tokens }) => sum + tokens, 0);
    watch.drift(lane, samples, work.batch);
    return {
      kind: "states",
      work,
      samples,
      skipped: [...this.#skipped].map(([row, reason]) => ({ row, reason })),
      engine: lane.label,
      shard: lane.shard,
      seconds: this.#seconds,
    };
  }

  #noSpace(reason: string): BatchOutcome {
    this.#tools.log.warn("engine.no-space", { batch: this.#work.batch, reason });
    return { kind: "no-space", work: this.#work, reason };
  }

  async #waitForGood(otherwise: string): Promise<void> {
    const { pool, clock, knownGoodWaitMs, releaseIfStopping, othersMayPass } = this.#tools;
    let isLate = false;
    const cancel = clock.setTimer(() => {
      isLate = true;
      pool.bell.ring();
    }, knownGoodWaitMs);
    this.waitsForGood = true;
    pool.bell.ring();
    try {
      while (pool.knownGood === null && !isLate && othersMayPass()) {
        releaseIfStopping();
        await pool.bell.wait();
      }
    } finally {
      cancel();
      this.waitsForGood = false;
    }
    if (pool.knownGood !== null) return;
    throw new EngineError({
      op: "extract states",
      subject: "all engines",
      message: otherwise,
      hint: "run `forebay check` on this model and engine",
      kind: "bad-states",
    });
  }
}

/** A full disk gives the batch back: it is nobody's fault. */
async function noSpaceIfFull<T>(make: () => Promise<T>): Promise<T> {
  try {
    return await make();
  } catch (error) {
    if (error instanceof RunError && error.remedy === "retry") {
      throw new NoSpace(error.message);
    }
    throw error;
  }
}

function stopError(step: Extract<RetryStep, { kind: "stop" }>, work: Work): RunError {
  if (step.cause === "disk") {
    return new RunError({
      op: "write states",
      subject: work.file,
      message: step.reason,
      safe: "committed packs are untouched; the batch is done again by the next run",
      hint: "check the spool's disk (dmesg, mount), or give another by --spool",
      exit: EXIT.disk,
    });
  }
  return new EngineError({
    op: "extract states",
    subject: `batch ${work.batch}`,
    message: step.reason,
    hint: "if these rows may be left out, raise --max-skips and run again: it continues",
    kind: "bad-states",
  });
}
