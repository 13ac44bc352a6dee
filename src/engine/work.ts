import type { ExtractSample, SampleStates } from "./protocol.ts";

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

/** What became of a batch. In each case nothing writes into any of its files any more. */
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

/** Where a fleet's batches come from, and go. */
export interface WorkSource {
  /** Asked whenever an engine has room; null: there are no more for any engine. */
  next(engine: string, signal: AbortSignal): Promise<Work | null>;
  /**
   * A new file and attempt number for the same samples at the same offsets; the old file is the caller's to drop.
   * A RunError with the remedy "retry" means that there is no room: the outcome is "no-space".
   */
  newAttempt(work: Work): Promise<Work>;
  done(outcome: BatchOutcome): Promise<void> | void;
}
