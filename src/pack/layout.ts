import { roundUp } from "../base/bytes.ts";

/** One sample as a batch names it. */
interface BatchSample {
  /** The dataset row index: the sample's id everywhere. */
  row: number;
  /** Tokens after the plan's truncation, >= 1. */
  tokens: number;
}

/** The unit of work and of commit: a fixed list of samples, in plan order. */
export interface Batch {
  index: number;
  samples: BatchSample[];
}

/** What every pack of a run has in common. */
export interface PackShape {
  /** Number of tapped blocks. */
  taps: number;
  /** Hidden size. taps x hidden is a multiple of 4. */
  hidden: number;
  hasLossMask: boolean;
  /** Bytes reserved in each header for what is the same in every pack of the run: metadataBytesOf. */
  metadataBytes: number;
}

/** Where one sample lies in its object; all offsets count from the object's first byte. */
export interface SampleLayout {
  row: number;
  tokens: number;
  /** [startByte, endByte) is the whole sample: ids, mask, states. */
  startByte: number;
  endByte: number;
  /** I64 [tokens] */
  idsByte: number;
  /** I64 [tokens], or null without a mask */
  maskByte: number | null;
  /** BF16 [tokens, taps, hidden], row-major, little-endian */
  statesByte: number;
  statesBytes: number;
}

export interface PackLayout {
  batch: number;
  /** Header with its 8 length bytes; a multiple of 64, fixed by the plan. */
  headerBytes: number;
  /** The object's exact size. */
  bytes: number;
  samples: SampleLayout[];
}

/** Longer skip reasons are cut in packs; `skips/<batch>.json` has them whole. */
export const SKIP_REASON_CHARS_MAX = 48;

/** A sample of more is skipped at plan time: Node's fs.read and many HTTP stacks end at 2 GiB. */
export const SAMPLE_BYTES_MAX = 2 ** 31;

/**
 * Where every sample of `batch` lies. Pure: the object's size and all offsets follow from the plan alone, so a
 * resume needs only sizes and a reader needs no index.
 */
export function packLayout(batch: Batch, shape: PackShape): PackLayout {
  let entriesBytes = 0;
  let dataBytes = 0;
  for (const { row, tokens } of batch.samples) {
    entriesBytes += headerEntryBytes(row, tokens, dataBytes, shape);
    dataBytes += sampleBytes(tokens, shape);
  }
  const headerBytes = headerBytesFor(entriesBytes, shape);
  let startByte = headerBytes;
  const samples = batch.samples.map((sample) => {
    const layout = layoutAt(sample, startByte, shape);
    startByte = layout.endByte;
    return layout;
  });
  return { batch: batch.index, headerBytes, bytes: headerBytes + dataBytes, samples };
}

/** Where `row` lies in the object of `batch`, or null where the batch does not hold it. */
export function sampleLayoutOf(batch: Batch, row: number, shape: PackShape): SampleLayout | null {
  return packLayout(batch, shape).samples.find((sample) => sample.row === row) ?? null;
}

/** Bytes of one sample: ids and mask as I64, states as bf16. A multiple of 8, as taps x hidden is one of 4. */
export function sampleBytes(tokens: number, shape: PackShape): number {
  return tokens * (8 + (shape.hasLossMask ? 8 : 0) + 2 * shape.taps * shape.hidden);
}

/** The most that a sample whose bytes begin at `dataByte` of the data can add to the header's JSON. */
export function headerEntryBytes(row: number, tokens: number, dataByte: number, shape: PackShape): number {
  const idsEnd = dataByte + 8 * tokens;
  const statesBegin = shape.hasLossMask ? idsEnd + 8 * tokens : idsEnd;
  const end = dataByte + sampleBytes(tokens, shape);
  const r = digits(row);
  const t = digits(tokens);
  let done = IDS_ENTRY + r + t + digits(dataByte) + digits(idsEnd);
  if (shape.hasLossMask) done += MASK_ENTRY + r + t + digits(idsEnd) + digits(statesBegin);
  done +=
    STATES_ENTRY + r + t + digits(shape.taps) + digits(shape.hidden) + digits(statesBegin) + digits(end);
  const reason = r + ":;".length + SKIP_REASON_CHARS_MAX;
  const skipped = SKIPPED_ENTRY + r + digits(end - dataByte) + digits(dataByte) + digits(end) + reason;
  return CRC_ENTRY + r + Math.max(done, skipped);
}

/** The header of a pack whose samples add `entriesBytes`: its 8 length bytes included, a multiple of 64. */
export function headerBytesFor(entriesBytes: number, shape: PackShape): number {
  return roundUp(FIXED + shape.metadataBytes + entriesBytes, 64);
}

function layoutAt({ row, tokens }: BatchSample, startByte: number, shape: PackShape): SampleLayout {
  const idsEnd = startByte + 8 * tokens;
  const statesByte = shape.hasLossMask ? idsEnd + 8 * tokens : idsEnd;
  const endByte = startByte + sampleBytes(tokens, shape);
  return {
    row,
    tokens,
    startByte,
    endByte,
    idsByte: startByte,
    maskByte: shape.hasLossMask ? idsEnd : null,
    statesByte,
    statesBytes: endByte - statesByte,
  };
}

// Lengths of the JSON around the numbers; writer.test.ts holds them against JSON.stringify.
const IDS_ENTRY = ',".token_ids":{"dtype":"I64","shape":[],"data_offsets":[,]}'.length;
const MASK_ENTRY = ',".loss_mask":{"dtype":"I64","shape":[],"data_offsets":[,]}'.length;
const STATES_ENTRY = ',".hidden_states":{"dtype":"BF16","shape":[,,],"data_offsets":[,]}'.length;
const SKIPPED_ENTRY = ',".skipped":{"dtype":"U8","shape":[],"data_offsets":[,]}'.length;
const CRC_ENTRY = ":01234567;".length;
// The batch number has a fixed reserve, so that a pack's size does not depend on its place in the plan.
const FIXED =
  8 + '{"__metadata__":{"header_crc32c":"01234567",,"batch":"9999999999","crc32c":"","skipped":""}}'.length;

/** Decimal digits of a whole number below 2^53. */
function digits(n: number): number {
  if (n < 10) return 1;
  if (n < 100) return 2;
  if (n < 1_000) return 3;
  if (n < 10_000) return 4;
  if (n < 100_000) return 5;
  if (n < 1_000_000) return 6;
  if (n < 10_000_000) return 7;
  if (n < 100_000_000) return 8;
  if (n < 1_000_000_000) return 9;
  if (n < 10_000_000_000) return 10;
  let count = 10;
  for (let rest = n / 10_000_000_000; rest >= 1; rest /= 10) count += 1;
  return count;
}
