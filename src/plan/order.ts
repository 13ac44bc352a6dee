import { headerBytesFor, headerEntryBytes, type PackShape, sampleBytes } from "../pack/layout.ts";
import { type RandomBelow, shuffle } from "./random.ts";

/**
 * Indices into `tokens`, longest first; equal lengths keep the order of `start`.
 * A radix sort of 16 bits a pass: ten million in about a second, and no comparison function whose stability or
 * cost depends on the engine.
 */
export function longestFirst(tokens: Uint32Array, start: Uint32Array): Uint32Array {
  let longest = 0;
  for (const n of tokens) if (n > longest) longest = n;
  let from: Uint32Array = start;
  for (let shift = 0; shift === 0 || longest >>> shift > 0; shift += 16) {
    const places = new Uint32Array(0x10001);
    // A longer digit goes to an earlier place: the digit's complement counts up.
    for (const index of from) places[0x10000 - ((tokens[index]! >>> shift) & 0xffff)]! += 1;
    for (let place = 1; place <= 0x10000; place += 1) places[place]! += places[place - 1]!;
    const to = new Uint32Array(from.length);
    for (const index of from) {
      const place = 0xffff - ((tokens[index]! >>> shift) & 0xffff);
      to[places[place]!++] = index;
    }
    from = to;
    if (shift === 16) break;
  }
  return from;
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
export function cutBatches(rows: Uint32Array, tokens: Uint32Array, bounds: BatchBounds): Uint32Array {
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
