import type { Log } from "../base/log.ts";
import { type CanaryOptions, chooseCanary, readStatesBytes, relativeError } from "./canary.ts";
import type { StatesShape } from "./check-states.ts";
import { type DriftLimits, DriftWatch } from "./drift.ts";
import type { Lane } from "./lane.ts";
import type { EnginePool } from "./pool.ts";
import type { SampleStates } from "./protocol.ts";
import type { Work } from "./work.ts";

export interface SelfWatchOptions {
  pool: EnginePool;
  shape: StatesShape;
  log: Log;
  /** Null: no drift watch. */
  drift: DriftLimits | null;
  /** Odd packs in a row from one engine before it is stopped. */
  driftStrikesMax: number;
  /** Null: no canary. */
  canary: CanaryOptions | null;
  /** Aborted: engines are not asked for anything but work. */
  stopping: AbortSignal;
}

/** What one engine was found to do, over all its lives. */
interface Standing {
  /** Odd packs in a row. */
  driftStrikes: number;
  /** Canaries in a row that did not match. */
  canaryStrikes: number;
  batchesSinceCanary: number;
}

/** Holds what engines computed against what they computed before; one that differs again and again is stopped. */
export class SelfWatch {
  readonly #options: SelfWatchOptions;
  readonly #drift: DriftWatch | null;
  readonly #standings = new Map<Lane, Standing>();

  constructor(options: SelfWatchOptions) {
    this.#options = options;
    this.#drift = options.drift && new DriftWatch(options.shape, options.drift);
  }

  /** Now and then an engine must agree with itself: a sample of a finished batch is computed again, by itself. */
  async canary(lane: Lane, work: Work, passed: ReadonlySet<number>): Promise<void> {
    const { pool, shape, log, canary: limits, stopping } = this.#options;
    if (!limits) return;
    const standing = this.#standingOf(lane);
    standing.batchesSinceCanary += 1;
    if (standing.batchesSinceCanary < limits.everyBatches) return;
    const sample = chooseCanary(work.samples.filter(({ row }) => passed.has(row)));
    // Also where the engine has all that it wants outstanding: one that is kept full would never be looked at.
    if (!sample || !lane.up || lane.held || stopping.aborted) return;
    standing.batchesSinceCanary = 0;
    const again = await pool.recompute(lane, sample);
    if (!again) return;
    const stored = await readStatesBytes(work.file, sample.offset, again.length);
    const error = relativeError(stored, again, shape);
    if (error <= limits.tolerance) {
      standing.canaryStrikes = 0;
      return;
    }
    const { row } = sample;
    standing.canaryStrikes += 1;
    const found = { engine: lane.label, batch: work.batch, row, error, limit: limits.tolerance };
    log.error("engine.canary-mismatch", found);
    if (standing.canaryStrikes >= limits.strikesMax) {
      const difference = `relative error ${error.toPrecision(2)}, at most ${limits.tolerance} expected`;
      pool.discredit(lane, `computing row ${row} again gave other states (${difference})`);
    }
  }

  /** The statistics of a finished batch against those of the run so far. */
  drift(lane: Lane, samples: readonly SampleStates[], batch: number): void {
    const { pool, log, driftStrikesMax } = this.#options;
    const events = this.#drift?.look(samples) ?? [];
    for (const { kind, message } of events) {
      log.warn(`engine.drift-${kind}`, { engine: lane.label, batch, message });
    }
    const standing = this.#standingOf(lane);
    standing.driftStrikes = events.length > 0 ? standing.driftStrikes + 1 : 0;
    if (standing.driftStrikes >= driftStrikesMax) {
      const strikes = `its states drifted in ${standing.driftStrikes} packs in a row`;
      pool.discredit(lane, `${strikes}: ${events[0]!.message}`);
    }
  }
  #standingOf(lane: Lane): Standing {
    const found = this.#standings.get(lane) ?? { driftStrikes: 0, canaryStrikes: 0, batchesSinceCanary: 0 };
    this.#standings.set(lane, found);
    return found;
  }
}
