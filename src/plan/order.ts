import { headerBytesFor, headerEntryBytes, type PackShape, sampleBytes } from "../pack/layout.ts";
import { type RandomBelow, shuffle } from "./random.ts";

/** Samples as two arrays side by side. */
export interface SampleColumns {
  rows: Uint32Array;
  tokens: Uint32Array;
}

/**
 * The samples by falling length; equal lengths keep their order.
 * A radix sort of 16 bits a pass that reads both columns in sequence: ten million in a second or two, and no
 * comparison function whose stability or cost depends on the engine.
 */
export function longestFirst(samples: SampleColumns): SampleColumns {
  const count = samples.rows.length;
  let longest = 0;
  for (let i = 0; i < count; i += 1) longest = Math.max(longest, samples.tokens[i]!);
  let from = samples;
  for (const shift of longest < 0x10000 ? [0] : [0, 16]) {
    const to = { rows: new Uint32Array(count), tokens: new Uint32Array(count) };
    // A longer length goes to an earlier place, so what is counted is the digit's complement.
    const places = new Uint32Array(0x10001);
    for (let i = 0; i < count; i += 1) places[0x10000 - ((from.tokens[i]! >>> shift) & 0xffff)]! += 1;
    for (let place = 1; place <= 0x10000; place += 1) places[place]! += places[place - 1]!;
    for (let i = 0; i < count; i += 1) {
      const tokens = from.tokens[i]!;
      const place = 0xffff - ((tokens >>> shift) & 0xffff);
      const at = places[place]!;
      places[place] = at + 1;
      to.rows[at] = from.rows[i]!;
      to.tokens[at] = tokens;
    }
    from = to;
  }
  return from;
}

/** Mixes the rows of each length, in place; `samples` are in order of length. */
export function shuffleEqualLengths({ rows, tokens }: SampleColumns, random: RandomBelow): void {
  for (let start = 0; start < rows.length; ) {
    let end = start + 1;
    while (end < rows.length && tokens[end] === tokens[start]) end += 1;
    shuffle(rows, random, start, end);
    start = end;
  }
}

export interface BatchBounds {
  shape: PackShape;
  packBytesMax: number;
  samplesMax: number;
  tokensMax: number;
}

/**
 * Cuts samples, in the order given, into batches that stay within `bounds`; one that exceeds them alone makes a
 * batch alone. Returns batchStart, [batches + 1]. Sums only, no strings: this runs over every row of a plan.
 */
export function cutBatches({ rows, tokens }: SampleColumns, bounds: BatchBounds): Uint32Array {
  const { shape, packBytesMax, samplesMax, tokensMax } = bounds;
  const starts = new Uint32Array(rows.length + 1);
  let batches = 0;
  let first = 0;
  let entriesBytes = 0;
  let dataBytes = 0;
  let batchTokens = 0;
  for (let i = 0; i < rows.length; i += 1) {
    const n = tokens[i]!;
    const bytes = sampleBytes(n, shape);
    const entryBytes = headerEntryBytes(rows[i]!, n, dataBytes, shape);
    const packBytes = headerBytesFor(entriesBytes + entryBytes, shape) + dataBytes + bytes;
    const full = packBytes > packBytesMax || i - first >= samplesMax || batchTokens + n > tokensMax;
    if (full && i > first) {
      batches += 1;
      starts[batches] = i;
      first = i;
      entriesBytes = headerEntryBytes(rows[i]!, n, 0, shape);
      dataBytes = bytes;
      batchTokens = n;
    } else {
      entriesBytes += entryBytes;
      dataBytes += bytes;
      batchTokens += n;
    }
  }
  if (rows.length > 0) {
    batches += 1;
    starts[batches] = rows.length;
  }
  return starts.slice(0, batches + 1);
}

/** At most this many batches run first for being the longest. */
const LONGEST_FIRST_MAX = 8;

/**
 * Order of batches that were cut longest first: the few longest (one in a hundred, at most 8: memory trouble
 * shows at once), then all others shuffled, so that any prefix is a fair sample of the dataset.
 */
export function shuffledBatches(batches: number, random: RandomBelow): Uint32Array {
  const order = new Uint32Array(batches);
  for (let b = 0; b < batches; b += 1) order[b] = b;
  shuffle(order, random, Math.min(LONGEST_FIRST_MAX, Math.ceil(batches / 100)));
  return order;
}
