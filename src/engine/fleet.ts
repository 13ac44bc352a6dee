import { EXIT, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { Stage } from "../base/stage.ts";
import {
  type CanaryOptions,
  chooseCanary,
  DEFAULT_CANARY,
  readStatesBytes,
  relativeError,
} from "./canary.ts";
import { refusedRows, type StatesShape } from "./check-states.ts";
import { type Clock, realClock } from "./clock.ts";
import { DEFAULT_DRIFT_LIMITS, type DriftLimits, DriftWatch } from "./drift.ts";
import type { Engine } from "./engine.ts";
import { EngineError } from "./engine-error.ts";
import type { FleetEngine, Lane, LaneStatus } from "./lane.ts";
import { EnginePool } from "./pool.ts";
import type { ExtractSample, Loaded, SampleStates } from "./protocol.ts";
import { nextStep, type RetryStep, type Trial, type TrialFailure } from "./retry.ts";
import type { EngineLimits } from "./watchdog.ts";

/**
 * Runs N engines over a stream of batches. The fleet PULLS: whenever an engine has room it calls `next(label)`, which
 * may take its time (space is reserved in it) and returns a batch with its part file made at full size, or null when
 * there are no more for any engine. Of every batch it was given the fleet says `done` exactly once: "states" (each row
 * is accepted or skipped, the accepted ones are in `outcome.work.file`, the newest attempt), "no-space" (give the batch
 * to `next` again when there is room; it is asked anew even after it said null), or "released" (the fleet was
 * stopped). In each case nothing writes into any of the batch's files any more. All between is the fleet's: restarts;
 * retries as retry.ts decides (rows that a living child failed go to another engine, into the same file; after a death
 * the whole batch is done anew in the file that `newAttempt` makes, which is asked for only after the child's exit);
 * skips; the stopping of sick engines. `run` resolves when `next` has said null and every batch is done; it rejects
 * with what stops the run once the other batches are released. The first engine loads, and passes `prepare`, before
 * the others start, so that they find the weights in the page cache.
 */
export interface FleetOptions {
  engines: readonly FleetEngine[];
  shape: StatesShape;
  log: Log;
  clock?: Clock;
  random?: () => number;
  limits?: Partial<EngineLimits>;
  /** Where each engine's stderr goes as `<label>.log`; null: only its tail is kept. */
  stderrDirectory: string | null;
  /** For the few bytes of a known-good row recomputed; made when needed. */
  scratchDirectory: string;
  /** Rows that this session may still skip (`--max-skips` less those skipped before). */
  skipsMax: number;
  /** Rows in a row that an engine alone fails before it is stopped. Default 8. */
  culpritsMax?: number;
  /** Deaths in a row before an engine is given up. Default 5. */
  deathsMax?: number;
  /** Delay before a restart after a death, full jitter. Default 1 s, doubling, at most 60 s. */
  restart?: { baseMs: number; capMs: number };
  /** Null: no drift watch. */
  drift?: DriftLimits | null;
  /** Odd packs in a row from one engine before it is stopped (they are kept). Default 3. */
  driftStrikesMax?: number;
  /** Null: no canary. */
  canary?: CanaryOptions | null;
  /** How long rows wait for anything to pass that could prove an engine. Default 10 min. */
  knownGoodWaitMs?: number;
  /** The gate: what the first engine must pass, once, before any work. Throws to stop the run. */
  prepare?: (engine: Engine, loaded: Loaded) => Promise<void>;
  next(engine: string, signal: AbortSignal): Promise<Work | null>;
  /**
   * A new file and attempt number for the same samples at the same offsets; the old file is the caller's to drop.
   * A RunError with the remedy "retry" means that there is no room: the outcome is "no-space".
   */
  newAttempt(work: Work): Promise<Work>;
  done(outcome: BatchOutcome): Promise<void> | void;
}

/** One batch to compute: its part file at full size, and where each sample's states go. */
export interface Work {
  batch: number;
  attempt: number;
  file: string;
  /** In plan order; rows are unique. */
  samples: readonly ExtractSample[];
}

export interface SkippedRow {
  row: number;
  reason: string;
}

export type BatchOutcome =
  | {
      kind: "states";
      /** As last attempted: its `file` holds the states. A skipped row's bytes are whatever a failed trial left. */
      work: Work;
      /** Accepted ones, in the work's order. */
      samples: SampleStates[];
      skipped: SkippedRow[];
      /** The engine that finished it. */
      engine: string;
      shard: number;
      /** As the engines told: sums over all trials that gave states. */
      seconds: { forward: number; write: number };
    }
  | { kind: "no-space"; work: Work; reason: string }
  | { kind: "released"; work: Work };

/** A batch on its way. */
interface Case {
  work: Work;
  good: Map<number, SampleStates>;
  skipped: Map<number, string>;
  trials: Trial[];
  seconds: { forward: number; write: number };
  /** The last trial ended in the child's death: its file is not to be used again. */
  died: boolean;
  last: Lane | null;
}

/** Thrown inside to unwind a batch that will not be finished. */
class Released extends Error {}
/** The same where there was no room for its next attempt. */
class NoSpace extends Error {}

export class Fleet {
  readonly #options: FleetOptions;
  readonly #clock: Clock;
  readonly #pool: EnginePool;
  readonly #drift: DriftWatch | null;
  readonly #cases = new Set<Promise<void>>();
  readonly #stopping = new AbortController();
  #skips = 0;
  /** `next` said that there is nothing more. */
  #drained = false;
  /** Whose `next` has not been answered. */
  readonly #pulling = new Set<Lane>();
  /** Batches that wait for any row to pass. */
  #waitingForGood = 0;
  #fatal: Error | null = null;
  #finished = false;
  /** Comes up before the others; until `prepare` has passed in it, they wait. */
  #leader: Lane | null = null;
  #prepared = false;

  constructor(options: FleetOptions) {
    this.#options = options;
    this.#clock = options.clock ?? realClock;
    const drift = options.drift === undefined ? DEFAULT_DRIFT_LIMITS : options.drift;
    this.#drift = drift && new DriftWatch(options.shape, drift);
    this.#pool = new EnginePool({
      engines: options.engines,
      log: options.log,
      clock: this.#clock,
      limits: options.limits ?? {},
      random: options.random ?? Math.random,
      shape: options.shape,
      stderrDirectory: options.stderrDirectory,
      scratchDirectory: options.scratchDirectory,
      restart: options.restart ?? { baseMs: 1_000, capMs: 60_000 },
      deathsMax: options.deathsMax ?? 5,
      culpritsMax: options.culpritsMax ?? 8,
      throwIfStopping: () => this.#releaseIfStopping(),
    });
  }

  async run(): Promise<void> {
    this.#leader = this.#pool.lanes[0] ?? null;
    const lanes = this.#pool.lanes.map((lane) =>
      this.#live(lane).catch((error: unknown) => {
        // A gate that we interrupted ourselves found nothing.
        if (!(this.#finished && error instanceof EngineError && error.kind === "stopped"))
          this.#stopRun(error);
      }),
    );
    await Promise.all(lanes);
    await Promise.all(this.#cases);
    if (this.#fatal !== null) throw this.#fatal;
  }

  /**
   * Claims no more, and resolves when nothing is in the engines and they are gone. What is in them is finished
   * until `graceMs` from now, then released.
   */
  async stop(graceMs: number): Promise<void> {
    this.#stopping.abort();
    this.#pool.bell.ring();
    let isLate = false;
    const cancel = this.#clock.setTimer(() => {
      isLate = true;
      this.#pool.bell.ring();
    }, graceMs);
    while (this.#cases.size > 0 && !isLate) await this.#pool.bell.wait();
    cancel();
    this.#finished = true;
    this.#pool.bell.ring();
    await Promise.all(this.#pool.lanes.map((lane) => lane.close(isLate)));
    await Promise.all(this.#cases);
  }

  /** Stops one engine for good, for a reason found elsewhere (a canary); its batches go to the others. */
  discredit(label: string, reason: string): void {
    const lane = this.#pool.lanes.find((one) => one.label === label);
    if (lane) this.#pool.discredit(lane, reason);
  }

  /** Where the engines' time went since the start: see EnginePool.stage. */
  get stage(): Stage {
    return this.#pool.stage;
  }

  status(): LaneStatus[] {
    return this.#pool.lanes.map((lane) => lane.status());
  }

  /** Rows skipped in this session. */
  get skips(): number {
    return this.#skips;
  }

  // --- one engine's seat ---

  async #live(lane: Lane): Promise<void> {
    const { lanes, bell } = this.#pool;
    this.#pool.account(lane);
    while (!this.#prepared && this.#leader !== lane && !this.#isOver) await bell.wait();
    while (!this.#isOver) {
      const engine = await lane.bringUp();
      if (!engine) break;
      if (!this.#prepared) {
        await this.#options.prepare?.(engine, engine.loaded!);
        this.#prepared = true;
      }
      bell.ring();
      await this.#feed(lane, engine);
      if (this.#isOver) break;
      const exit = await engine.exited;
      if (exit.kind === "stopped") lane.restarting();
      else lane.died(exit.reason);
    }
    if (lane.failed) this.#pool.discredited.add(lane.label);
    await lane.close(this.#fatal !== null);
    if (this.#leader === lane) this.#leader = lanes.find((other) => !other.over) ?? null;
    if (!this.#isOver && lanes.every((other) => other.over)) this.#stopRun(this.#noEnginesLeft());
    bell.ring();
  }

  /** Pulls work for the engine as long as it lives; resolves when it is gone, or there is nothing more to do. */
  async #feed(lane: Lane, engine: Engine): Promise<void> {
    const { bell, stage } = this.#pool;
    const gone = engine.exited.then(() => bell.ring());
    while (engine.usable && !this.#isOver) {
      const mayPull = !this.#stopping.signal.aborted && !this.#drained && !this.#pulling.has(lane);
      if (mayPull && lane.hasRoom) void this.#pull(lane);
      if (this.#drained && lane.requests === 0) stage.remove(lane.label);
      this.#finishIfNothingIsLeft();
      if (!this.#isOver) await bell.wait();
    }
    if (!engine.usable) await gone;
  }

  /** Not awaited by the engine's life: `next` may wait for space that only a batch waiting for this engine frees. */
  async #pull(lane: Lane): Promise<void> {
    this.#pulling.add(lane);
    this.#pool.account(lane);
    try {
      const work = await this.#options.next(lane.label, this.#stopping.signal);
      if (work) this.#begin(work, lane);
      else this.#drained = true;
    } catch (error) {
      if (!this.#stopping.signal.aborted) this.#stopRun(error);
    } finally {
      this.#pulling.delete(lane);
      this.#pool.bell.ring();
    }
  }

  #finishIfNothingIsLeft(): void {
    const isOut = this.#stopping.signal.aborted || this.#drained;
    if (this.#isOver || !isOut || this.#pulling.size > 0 || this.#cases.size > 0) return;
    this.#finished = true;
    // One that is loading, or waits before a restart, is not needed any more.
    for (const lane of this.#pool.lanes) if (!lane.up) void lane.close(true);
    this.#pool.bell.ring();
  }

  get #isOver(): boolean {
    return this.#finished || this.#fatal !== null;
  }

  // --- one batch ---

  #begin(work: Work, lane: Lane): void {
    const one: Case = {
      work,
      good: new Map(),
      skipped: new Map(),
      trials: [],
      seconds: { forward: 0, write: 0 },
      died: false,
      last: null,
    };
    const carried = this.#carry(one, lane)
      .catch((error: unknown): BatchOutcome => {
        if (error instanceof NoSpace) return this.#noSpace(one, error.message);
        if (!(error instanceof Released)) this.#stopRun(error);
        return { kind: "released", work: one.work };
      })
      .then((outcome) => this.#options.done(outcome))
      .catch((error: unknown) => this.#stopRun(error))
      .finally(() => {
        this.#cases.delete(carried);
        this.#finishIfNothingIsLeft();
        this.#pool.bell.ring();
      });
    this.#cases.add(carried);
  }

  /** From its first trial to its outcome. */
  async #carry(one: Case, preferred: Lane): Promise<BatchOutcome> {
    this.#releaseIfStopping();
    const rows = one.work.samples.map(({ row }) => row);
    await this.#firstTrial(one, preferred, rows);
    for (;;) {
      const step = nextStep({
        rows: one.work.samples.map(({ row, ids }) => ({ row, tokens: ids.length })),
        good: new Set(one.good.keys()),
        skipped: new Set(one.skipped.keys()),
        trials: one.trials,
        discredited: this.#pool.discredited,
        skipsLeft: this.#options.skipsMax - this.#skips,
        hasKnownGood: this.#pool.knownGood !== null,
      });
      switch (step.kind) {
        case "finish":
          await this.#canary(one);
          return this.#finish(one);
        case "no-space":
          return this.#noSpace(one, step.reason);
        case "stop":
          throw stopError(step, one.work);
        case "skip":
          this.#skip(one, step.rows);
          break;
        case "wait-for-good":
          await this.#waitForGood(step.otherwise);
          break;
        case "try":
          await this.#retry(one, step);
          break;
      }
    }
  }

  async #firstTrial(one: Case, preferred: Lane, rows: readonly number[]): Promise<void> {
    // Between the pull and now it may have died, been filled or held: any other with room will do.
    let lane = preferred;
    while (!lane.up || !lane.hasRoom) lane = await this.#pool.free(preferred);
    await this.#try(one, lane, rows, { alone: false, proven: false });
  }

  async #retry(one: Case, step: Extract<RetryStep, { kind: "try" }>): Promise<void> {
    this.#releaseIfStopping();
    if (one.died) {
      one.work = await this.#newAttempt(one.work);
      one.died = false;
    }
    const lane = await this.#pool.hold(step.where, one.trials.at(-1)!.livesStarted);
    const { life } = lane;
    try {
      let proven = false;
      for (const group of step.groups) {
        const isProbed = group.some((row) => step.probed.has(row));
        if (isProbed && !proven) proven = await this.#pool.probe(lane);
        if ((isProbed && !proven) || !lane.up || lane.life !== life) return;
        if (!(await this.#try(one, lane, group, { alone: true, proven }))) return;
        proven = true;
      }
    } finally {
      this.#pool.release(lane);
    }
  }

  async #newAttempt(work: Work): Promise<Work> {
    try {
      return await this.#options.newAttempt(work);
    } catch (error) {
      if (error instanceof RunError && error.remedy === "retry") throw new NoSpace(error.message);
      throw error;
    }
  }

  #noSpace({ work }: Case, reason: string): BatchOutcome {
    this.#options.log.warn("engine.no-space", { batch: work.batch, reason });
    // `next` gets it back: it is asked anew, whatever it said before.
    this.#drained = false;
    return { kind: "no-space", work, reason };
  }

  /** One request; true where all its rows passed. What came of it stands in `one`. */
  async #try(
    one: Case,
    lane: Lane,
    rows: readonly number[],
    how: { alone: boolean; proven: boolean },
  ): Promise<boolean> {
    const { shape, log } = this.#options;
    const { work } = one;
    const wanted = new Set(rows);
    const asked = work.samples.filter(({ row }) => wanted.has(row));
    const { life } = lane;
    let answered: SampleStates[] = [];
    let failures: TrialFailure[] = [];
    let died = false;
    try {
      const answer = await this.#pool.ask(lane, { attempt: work.attempt, file: work.file, samples: asked });
      failures = answer.failed.map(({ message, ...failure }) => ({ ...failure, reason: message }));
      const failedRows = new Set(failures.map(({ row }) => row));
      const refused = refusedRows(
        asked.filter(({ row }) => !failedRows.has(row)),
        answer.samples,
        shape,
      );
      for (const { row, reason } of refused) {
        failures.push({ row, kind: "bad-states", errno: null, reason, named: true });
      }
      const bad = new Set(failures.map(({ row }) => row));
      answered = answer.samples.filter(({ row }) => !bad.has(row));
      one.seconds.forward += answer.seconds.forward ?? 0;
      one.seconds.write += answer.seconds.write ?? 0;
    } catch (error) {
      if (!(error instanceof EngineError)) throw error;
      died = true;
      const { kind, errno, message: reason } = error;
      failures = rows.map((row) => ({ row, kind, errno, reason, named: error.rows.includes(row) }));
    }
    one.last = lane;
    if (died) {
      one.died = true;
      one.good.clear();
    }
    for (const sample of answered) one.good.set(sample.row, sample);
    const passed = answered.map(({ row }) => row);
    const trial: Trial = {
      engine: lane.label,
      life,
      livesStarted: this.#pool.lives,
      rows,
      ...how,
      passed,
      failures,
    };
    one.trials.push(trial);
    for (const { row, kind, reason } of failures.slice(0, 20)) {
      log.warn("engine.row-failed", { engine: lane.label, batch: work.batch, row, kind, reason });
    }
    this.#pool.judge(lane, trial, died);
    this.#pool.rememberGood(asked.filter(({ row }) => one.good.has(row)));
    this.#releaseIfKilled(failures);
    return failures.length === 0;
  }

  #skip(one: Case, rows: readonly SkippedRow[]): void {
    for (const { row, reason } of rows) {
      one.skipped.set(row, reason);
      this.#skips += 1;
      this.#options.log.warn("engine.row-skipped", { batch: one.work.batch, row, reason });
    }
  }

  #finish(one: Case): BatchOutcome {
    const { work, good, skipped, seconds } = one;
    const lane = one.last!;
    const samples = work.samples.flatMap(({ row }) => good.get(row) ?? []);
    lane.done.batches += 1;
    lane.done.samples += samples.length;
    lane.done.tokens += samples.reduce((sum, { tokens }) => sum + tokens, 0);
    this.#watchDrift(lane, samples, work.batch);
    return {
      kind: "states",
      work,
      samples,
      skipped: [...skipped].map(([row, reason]) => ({ row, reason })),
      engine: lane.label,
      shard: lane.shard,
      seconds,
    };
  }

  /** Now and then an engine must agree with itself: a sample of a finished batch is computed again, by itself. */
  async #canary({ work, good, last: lane }: Case): Promise<void> {
    const options = this.#options.canary === undefined ? DEFAULT_CANARY : this.#options.canary;
    if (!options || !lane) return;
    lane.batchesSinceCanary += 1;
    if (lane.batchesSinceCanary < options.everyBatches) return;
    const { shape, log } = this.#options;
    const sample = chooseCanary(work.samples.filter(({ row }) => good.has(row)));
    // Also where the engine has all that it wants outstanding: one that is kept full would never be looked at.
    if (!sample || !lane.up || lane.held || this.#stopping.signal.aborted) return;
    lane.batchesSinceCanary = 0;
    const again = await this.#pool.recompute(lane, sample);
    if (!again) return;
    const stored = await readStatesBytes(work.file, sample.offset, again.length);
    const error = relativeError(stored, again, shape);
    if (error <= options.tolerance) {
      lane.canaryStrikes = 0;
      return;
    }
    const { row } = sample;
    lane.canaryStrikes += 1;
    log.error("engine.canary-mismatch", {
      engine: lane.label,
      batch: work.batch,
      row,
      error,
      limit: options.tolerance,
    });
    if (lane.canaryStrikes >= options.strikesMax) {
      const found = `relative error ${error.toPrecision(2)}, at most ${options.tolerance} expected`;
      this.#pool.discredit(lane, `computing row ${row} again gave other states (${found})`);
    }
  }

  #watchDrift(lane: Lane, samples: readonly SampleStates[], batch: number): void {
    const events = this.#drift?.look(samples) ?? [];
    for (const { kind, message } of events) {
      this.#options.log.warn(`engine.drift-${kind}`, { engine: lane.label, batch, message });
    }
    lane.driftStrikes = events.length > 0 ? lane.driftStrikes + 1 : 0;
    if (lane.driftStrikes >= (this.#options.driftStrikesMax ?? 3)) {
      this.#pool.discredit(
        lane,
        `its states drifted in ${lane.driftStrikes} packs in a row: ${events[0]!.message}`,
      );
    }
  }

  async #waitForGood(otherwise: string): Promise<void> {
    let isLate = false;
    const cancel = this.#clock.setTimer(() => {
      isLate = true;
      this.#pool.bell.ring();
    }, this.#options.knownGoodWaitMs ?? 600_000);
    this.#waitingForGood += 1;
    this.#pool.bell.ring();
    try {
      while (this.#pool.knownGood === null && !isLate && this.#othersMayPass()) {
        this.#releaseIfStopping();
        await this.#pool.bell.wait();
      }
    } finally {
      cancel();
      this.#waitingForGood -= 1;
    }
    if (this.#pool.knownGood !== null) return;
    throw new EngineError({
      op: "extract states",
      subject: "all engines",
      message: otherwise,
      hint: "run `forebay check` on this model and engine",
      kind: "bad-states",
    });
  }

  #othersMayPass(): boolean {
    return !this.#drained || this.#cases.size > this.#waitingForGood;
  }

  // --- its end ---

  #releaseIfStopping(): void {
    if (this.#stopping.signal.aborted || this.#fatal !== null) throw new Released();
  }

  /** An engine that we killed to stop, and not because of an illness of its own, leaves its batches undone. */
  #releaseIfKilled(failures: readonly TrialFailure[]): void {
    if (failures.some(({ kind }) => kind === "stopped")) this.#releaseIfStopping();
  }

  #stopRun(error: unknown): void {
    if (this.#fatal !== null) return;
    this.#fatal = error instanceof Error ? error : new Error(String(error));
    this.#stopping.abort();
    this.#pool.bell.ring();
    for (const lane of this.#pool.lanes) void lane.close(true);
  }

  #noEnginesLeft(): EngineError {
    const reasons = this.#pool.lanes.map((lane) => `${lane.label}: ${lane.lastError ?? "stopped"}`);
    return new EngineError({
      op: "run engines",
      subject: this.#pool.lanes.map(({ label }) => label).join(", "),
      message: `no engine is left (${reasons.slice(0, 4).join("; ")})`,
      hint: "see the engines' logs in the run directory, then start the run again: it continues",
      kind: "crash",
    });
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
