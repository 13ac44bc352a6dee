import { EXIT, RunError } from "../base/errors.ts";
import {
  type Batch,
  headerBytesFor,
  headerEntryBytes,
  type PackShape,
  SAMPLE_BYTES_MAX,
  sampleBytes,
} from "../pack/layout.ts";
import { cutBatches, longestFirst, shuffledBatches, shuffleEqualLengths } from "./order.ts";
import { seededRandom } from "./random.ts";

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

/** In the order of their codes in `skippedReasons` and in plan files: append only. */
export const SKIP_REASONS = ["empty", "over-max-tokens", "over-positions", "over-2GiB", "bad-ids"] as const;
export type SkipReason = (typeof SKIP_REASONS)[number];

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
  /** Codes: indices into SKIP_REASONS. */
  skippedReasons: Uint8Array;
}

export interface PlanRows {
  /** Tokens of each row; lengths[i] belongs to row firstRow + i. */
  lengths: Uint32Array;
  firstRow: number;
  /** Dataset row ids whose token ids the model does not have, in any order. */
  badRows?: Uint32Array;
  /** How errors name where the rows come from. Default "dataset". */
  subject?: string;
}

/**
 * Constants and not settings, so that a plan never depends on an engine: they keep every header under 2 MB and
 * every protocol message under its 32 MiB. With real models the pack's bytes are always the nearer bound.
 */
const BATCH_SAMPLES_MAX = 5_000;
const BATCH_TOKENS_MAX = 2_000_000;

/**
 * The fixed list of batches. Pure: the same rows and options give the same plan on every machine.
 * Throws (usage, configuration) where the options make no sense or no row is left.
 */
export function makePlan(rows: PlanRows, options: PlanOptions): Plan {
  const { lengths, firstRow, badRows, subject = "dataset" } = rows;
  refuseBadOptions(options);
  if (firstRow + lengths.length > 2 ** 32) {
    throw bad(`row ${firstRow + lengths.length - 1}`, "row ids end at 2^32 - 1", EXIT.usage);
  }
  const kept = decide(lengths, firstRow, badRows ?? new Uint32Array(0), options);
  if (kept.rows.length === 0) {
    const why = countReasons(kept.skippedReasons).map(({ reason, rows }) => `${rows} ${reason}`);
    throw bad(
      subject,
      lengths.length === 0
        ? "the dataset has no rows"
        : `no row is left of ${lengths.length}: ${why.join(", ")}`,
      EXIT.configuration,
      "raise --max-tokens or --pack-bytes, or take other rows; forebay plan counts them",
    );
  }
  const random = seededRandom(options.seed);
  const samples = longestFirst(kept);
  // Neighbours in a dataset are often alike: among equal lengths chance mixes them, not the file's order.
  if (options.order === "shuffled") shuffleEqualLengths(samples, random);
  const batchStart = cutBatches(samples, {
    shape: options.shape,
    packBytesMax: options.packBytesMax,
    samplesMax: BATCH_SAMPLES_MAX,
    tokensMax: BATCH_TOKENS_MAX,
  });
  const { skippedRows, skippedReasons } = kept;
  const sorted = { options, ...samples, batchStart, skippedRows, skippedReasons };
  return options.order === "shuffled"
    ? reorder(sorted, shuffledBatches(batchStart.length - 1, random))
    : sorted;
}

export function batchCount(plan: Plan): number {
  return plan.batchStart.length - 1;
}

/** Batch `index` with its samples in plan order. Throws a RangeError beyond the plan. */
export function batchOf(plan: Plan, index: number): Batch {
  const [start, end] = batchRange(plan, index);
  const samples = [];
  for (let i = start; i < end; i += 1) samples.push({ row: plan.rows[i]!, tokens: plan.tokens[i]! });
  return { index, samples };
}

/** The exact size of a batch's object, without building its layout: a resume asks this of every batch. */
export function batchBytes(plan: Plan, index: number): number {
  const [start, end] = batchRange(plan, index);
  const { shape } = plan.options;
  let entriesBytes = 0;
  let dataBytes = 0;
  for (let i = start; i < end; i += 1) {
    entriesBytes += headerEntryBytes(plan.rows[i]!, plan.tokens[i]!, dataBytes, shape);
    dataBytes += sampleBytes(plan.tokens[i]!, shape);
  }
  return headerBytesFor(entriesBytes, shape) + dataBytes;
}

export function batchTokens(plan: Plan, index: number): number {
  const [start, end] = batchRange(plan, index);
  let tokens = 0;
  for (let i = start; i < end; i += 1) tokens += plan.tokens[i]!;
  return tokens;
}

export type RowPlace =
  | { kind: "planned"; batch: number; tokens: number }
  | { kind: "skipped"; reason: SkipReason }
  /** Not among the rows that the plan was made of. */
  | { kind: "unknown" };

/** Where the plan puts dataset row `row`. One pass over the rows: milliseconds, for single questions only. */
export function findRow(plan: Plan, row: number): RowPlace {
  const at = plan.rows.indexOf(row);
  if (at >= 0) {
    return { kind: "planned", batch: batchAt(plan.batchStart, at), tokens: plan.tokens[at]! };
  }
  const skipped = plan.skippedRows.indexOf(row);
  if (skipped < 0) return { kind: "unknown" };
  return { kind: "skipped", reason: reasonOf(plan.skippedReasons[skipped]!) };
}

export interface PlanTotals {
  /** Planned and skipped together. */
  rows: number;
  planned: number;
  skipped: { reason: SkipReason; rows: number }[];
  tokens: number;
  batches: number;
  /** Of all packs, headers included. */
  bytes: number;
  largestPackBytes: number;
  longestTokens: number;
}

export function planTotals(plan: Plan): PlanTotals {
  const totals: PlanTotals = {
    rows: plan.rows.length + plan.skippedRows.length,
    planned: plan.rows.length,
    skipped: countReasons(plan.skippedReasons),
    tokens: 0,
    batches: batchCount(plan),
    bytes: 0,
    largestPackBytes: 0,
    longestTokens: 0,
  };
  for (const tokens of plan.tokens) {
    totals.tokens += tokens;
    if (tokens > totals.longestTokens) totals.longestTokens = tokens;
  }
  for (let batch = 0; batch < totals.batches; batch += 1) {
    const bytes = batchBytes(plan, batch);
    totals.bytes += bytes;
    if (bytes > totals.largestPackBytes) totals.largestPackBytes = bytes;
  }
  return totals;
}

export function reasonOf(code: number): SkipReason {
  const reason = SKIP_REASONS[code];
  if (!reason) throw new RangeError(`no skip reason has the code ${code}`);
  return reason;
}

type Kept = Pick<Plan, "rows" | "tokens" | "skippedRows" | "skippedReasons">;

/** What becomes of each row, in dataset order. */
function decide(lengths: Uint32Array, firstRow: number, badRows: Uint32Array, options: PlanOptions): Kept {
  const isBad = new Uint8Array(badRows.length > 0 ? lengths.length : 0);
  for (const row of badRows) isBad[row - firstRow] = 1;
  const rows = new Uint32Array(lengths.length);
  const tokens = new Uint32Array(lengths.length);
  const skippedRows: number[] = [];
  const skippedReasons: SkipReason[] = [];
  const cutAt = options.long === "truncate" ? (options.maxTokens ?? Number.POSITIVE_INFINITY) : Infinity;
  const skipOver = options.long === "skip" ? (options.maxTokens ?? Number.POSITIVE_INFINITY) : Infinity;
  const positions = options.positions ?? Number.POSITIVE_INFINITY;
  let kept = 0;
  for (let i = 0; i < lengths.length; i += 1) {
    const length = Math.min(lengths[i]!, cutAt);
    let reason: SkipReason | null = null;
    if (isBad[i] === 1) reason = "bad-ids";
    else if (length === 0) reason = "empty";
    else if (length > skipOver) reason = "over-max-tokens";
    else if (length > positions) reason = "over-positions";
    else if (sampleBytes(length, options.shape) > SAMPLE_BYTES_MAX) reason = "over-2GiB";
    if (reason) {
      skippedRows.push(firstRow + i);
      skippedReasons.push(reason);
    } else {
      rows[kept] = firstRow + i;
      tokens[kept] = length;
      kept += 1;
    }
  }
  return {
    rows: rows.subarray(0, kept),
    tokens: tokens.subarray(0, kept),
    skippedRows: Uint32Array.from(skippedRows),
    skippedReasons: Uint8Array.from(skippedReasons, (reason) => SKIP_REASONS.indexOf(reason)),
  };
}

/** The same batches in another order. */
function reorder(plan: Plan, order: Uint32Array): Plan {
  const rows = new Uint32Array(plan.rows.length);
  const tokens = new Uint32Array(plan.tokens.length);
  const batchStart = new Uint32Array(plan.batchStart.length);
  let at = 0;
  for (let b = 0; b < order.length; b += 1) {
    const end = plan.batchStart[order[b]! + 1]!;
    for (let from = plan.batchStart[order[b]!]!; from < end; from += 1, at += 1) {
      rows[at] = plan.rows[from]!;
      tokens[at] = plan.tokens[from]!;
    }
    batchStart[b + 1] = at;
  }
  return { ...plan, rows, tokens, batchStart };
}

function batchRange(plan: Plan, index: number): [start: number, end: number] {
  const start = plan.batchStart[index];
  const end = plan.batchStart[index + 1];
  if (start === undefined || end === undefined) {
    throw new RangeError(`batch ${index} of a plan with ${batchCount(plan)}`);
  }
  return [start, end];
}

/** The batch whose range holds position `at`: binary search. */
function batchAt(batchStart: Uint32Array, at: number): number {
  let low = 0;
  let high = batchStart.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >>> 1;
    if (batchStart[middle]! <= at) low = middle;
    else high = middle;
  }
  return low;
}

function countReasons(codes: Uint8Array): { reason: SkipReason; rows: number }[] {
  const counts = SKIP_REASONS.map((reason) => ({ reason, rows: 0 }));
  for (const code of codes) counts[code]!.rows += 1;
  return counts.filter(({ rows }) => rows > 0);
}

function refuseBadOptions({ shape, packBytesMax, maxTokens, seed }: PlanOptions): void {
  const whole = (n: number) => Number.isSafeInteger(n) && n > 0;
  if (!whole(shape.taps) || !whole(shape.hidden) || (shape.taps * shape.hidden) % 4 !== 0) {
    throw bad(
      `${shape.taps} taps of hidden size ${shape.hidden}`,
      "expected taps x hidden to be a multiple of 4",
      EXIT.usage,
    );
  }
  if (!whole(packBytesMax)) throw bad("--pack-bytes", `expected a size, found ${packBytesMax}`, EXIT.usage);
  if (maxTokens !== null && !whole(maxTokens)) {
    throw bad("--max-tokens", `expected at least 1, found ${maxTokens}`, EXIT.usage);
  }
  if (!Number.isSafeInteger(seed) || seed < 0) {
    throw bad("--seed", `expected a whole number from 0, found ${seed}`, EXIT.usage);
  }
}

function bad(
  subject: string,
  message: string,
  exit: typeof EXIT.usage | typeof EXIT.configuration,
  hint = "see --help",
): RunError {
  return new RunError({ op: "make plan", subject, message, safe: "nothing was written", hint, exit });
}
