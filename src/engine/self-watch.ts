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

/** Holds what engines computed against what they computed before; one that differs again and again is stopped. */
export class SelfWatch {
  readonly #options: SelfWatchOptions;
  readonly #drift: DriftWatch | null;

  constructor(options: SelfWatchOptions) {
    this.#options = options;
    this.#drift = options.drift && new DriftWatch(options.shape, options.drift);
  }

  /** Now and then an engine must agree with itself: a sample of a finished batch is computed again, by itself. */
  async canary(lane: Lane, work: Work, passed: ReadonlySet<number>): Promise<void> {
    const { pool, shape, log, canary: limits, stopping } = this.#options;
    if (!limits) return;
    lane.batchesSinceCanary += 1;
    if (lane.batchesSinceCanary < limits.everyBatches) return;
    const sample = chooseCanary(work.samples.filter(({ row }) => passed.has(row)));
    // Also where the engine has all that it wants outstanding: one that is kept full would never be looked at.
    if (!sample || !lane.up || lane.held || stopping.aborted) return;
    lane.batchesSinceCanary = 0;
    const again = await pool.recompute(lane, sample);
    if (!again) return;
    const stored = await readStatesBytes(work.file, sample.offset, again.length);
    const error = relativeError(stored, again, shape);
    if (error <= limits.tolerance) {
      lane.canaryStrikes = 0;
      return;
    }
    const { row } = sample;
    lane.canaryStrikes += 1;
    const found = { engine: lane.label, batch: work.batch, row, error, limit: limits.tolerance };
    log.error("engine.canary-mismatch", found);
    if (lane.canaryStrikes >= limits.strikesMax) {
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
    lane.driftStrikes = events.length > 0 ? lane.driftStrikes + 1 : 0;
    if (lane.driftStrikes >= driftStrikesMax) {
      const strikes = `its states drifted in ${lane.driftStrikes} packs in a row`;
      pool.discredit(lane, `${strikes}: ${events[0]!.message}`);
    }
  }
}
