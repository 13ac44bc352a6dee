import type { Log } from "../base/log.ts";
import type { Stage } from "../base/stage.ts";
import { BatchCase, type CaseTools, Released } from "./batch-case.ts";
import { type CanaryOptions, DEFAULT_CANARY } from "./canary.ts";
import type { StatesShape } from "./check-states.ts";
import { type Clock, realClock } from "./clock.ts";
import { DEFAULT_DRIFT_LIMITS, type DriftLimits } from "./drift.ts";
import type { Engine } from "./engine.ts";
import { EngineError } from "./engine-error.ts";
import { lastLines } from "./engine-exit.ts";
import type { FleetEngine, Lane, LaneStatus } from "./lane.ts";
import { EnginePool } from "./pool.ts";
import type { Loaded } from "./protocol.ts";
import { SelfWatch } from "./self-watch.ts";
import type { EngineLimits } from "./watchdog.ts";
import type { BatchOutcome, Work, WorkSource } from "./work.ts";

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
export interface FleetOptions extends WorkSource {
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
  /** The fleet of an earlier round of this session, at its end: an engine given up stays so, and its skips count. */
  before?: Fleet | null;
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
}

export class Fleet {
  readonly #options: FleetOptions;
  readonly #clock: Clock;
  readonly #pool: EnginePool;
  readonly #tools: CaseTools;
  readonly #cases = new Map<BatchCase, Promise<void>>();
  readonly #stopping = new AbortController();
  /** `next` said that there is nothing more. */
  #drained = false;
  /** Whose `next` has not been answered. */
  readonly #pulling = new Set<Lane>();
  #fatal: Error | null = null;
  #finished = false;
  /** Comes up before the others; until `prepare` has passed in it, they wait. */
  #leader: Lane | null = null;
  #prepared = false;

  constructor(options: FleetOptions) {
    const { log, shape, before = null, drift = DEFAULT_DRIFT_LIMITS, canary = DEFAULT_CANARY } = options;
    this.#options = options;
    this.#clock = options.clock ?? realClock;
    const releaseIfStopping = () => this.#releaseIfStopping();
    const pool = new EnginePool({
      engines: options.engines,
      before: before && before.#pool,
      log,
      clock: this.#clock,
      limits: options.limits ?? {},
      random: options.random ?? Math.random,
      shape,
      stderrDirectory: options.stderrDirectory,
      scratchDirectory: options.scratchDirectory,
      restart: options.restart ?? { baseMs: 1_000, capMs: 60_000 },
      deathsMax: options.deathsMax ?? 5,
      culpritsMax: options.culpritsMax ?? 8,
      throwIfStopping: releaseIfStopping,
    });
    this.#pool = pool;
    const stopping = this.#stopping.signal;
    const driftStrikesMax = options.driftStrikesMax ?? 3;
    this.#tools = {
      pool,
      watch: new SelfWatch({ pool, shape, log, drift, driftStrikesMax, canary, stopping }),
      shape,
      log,
      clock: this.#clock,
      skips: before ? before.#tools.skips : { left: options.skipsMax },
      knownGoodWaitMs: options.knownGoodWaitMs ?? 600_000,
      newAttempt: (work) => options.newAttempt(work),
      releaseIfStopping,
      othersMayPass: () => !this.#drained || [...this.#cases.keys()].some((one) => !one.waitsForGood),
    };
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
    await Promise.all(this.#cases.values());
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
    await Promise.all(this.#cases.values());
  }

  /** Where the engines' time went since the start: see EnginePool.stage. */
  get stage(): Stage {
    return this.#pool.stage;
  }

  status(): LaneStatus[] {
    return this.#pool.lanes.map((lane) => lane.status());
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
      if (exit.unkillable) lane.giveUp(exit.reason);
      else if (exit.kind === "stopped") lane.restarting();
      else lane.died(exit.reason, lastLines(exit.stderrTail));
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
    const one = new BatchCase(work, this.#tools);
    const carried = one
      .carry(lane)
      .catch((error: unknown): BatchOutcome => {
        if (!(error instanceof Released)) this.#stopRun(error);
        return { kind: "released", work: one.work };
      })
      .then((outcome) => {
        // `next` gets it back: it is asked anew, whatever it said before.
        if (outcome.kind === "no-space") this.#drained = false;
        return this.#options.done(outcome);
      })
      .catch((error: unknown) => this.#stopRun(error))
      .finally(() => {
        this.#cases.delete(one);
        this.#finishIfNothingIsLeft();
        this.#pool.bell.ring();
      });
    this.#cases.set(one, carried);
  }

  // --- its end ---

  #releaseIfStopping(): void {
    if (this.#stopping.signal.aborted || this.#fatal !== null) throw new Released();
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
      stderr: this.#pool.lanes.find(({ lastStderr }) => lastStderr.length > 0)?.lastStderr ?? [],
      hint: "see the engines' logs in the run directory, then start the run again: it continues",
      kind: "crash",
    });
  }
}
