import type { Batch, PackShape } from "../pack/layout.ts";

export type PlanOrder = "shuffled" | "longest-first";
export type LongPolicy = "skip" | "truncate";

export interface PlanOptions {
  shape: PackShape;
  /** Bound on a pack's bytes; a single larger sample makes a batch alone. */
  packBytesMax: number;
  order: PlanOrder;
  seed: number;
  /** Rows longer than this are skipped or cut to it; null: only the model's positions bound them (skip). */
  maxTokens: number | null;
  long: LongPolicy;
  /** max_position_embeddings of the model; null: unknown. */
  positions: number | null;
}

export type SkipReason = "empty" | "over-max-tokens" | "over-positions" | "over-2GiB" | "bad-ids";

/** Typed arrays throughout: ten million rows must fit. */
export interface Plan {
  options: PlanOptions;
  /** Dataset row ids in plan order, skipped ones left out. */
  rows: Uint32Array;
  /** Tokens of each sample after truncation, beside `rows`. */
  tokens: Uint32Array;
  /** [batches + 1]: batch b is rows[batchStart[b] .. batchStart[b+1]). */
  batchStart: Uint32Array;
  /** Rows decided against at plan time, ascending, and why. */
  skippedRows: Uint32Array;
  skippedReasons: Uint8Array;
}

export type BatchOf = (plan: Plan, index: number) => Batch;
