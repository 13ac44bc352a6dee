import { crc32c, crc32cCombine, crcToHex } from "../base/checksum.ts";
import { writeAllSync } from "../base/publish.ts";
import { buildHeader, type TensorSpec } from "../base/safetensors.ts";
import { type PackLayout, type PackShape, type SampleLayout, SKIP_REASON_CHARS_MAX } from "./layout.ts";
import { type PackFacts, packMetadata, skipReasonText } from "./metadata.ts";

/** What became of one sample of a batch. */
export type SampleOutcome =
  | {
      kind: "done";
      /** [tokens], every id >= 0 */
      ids: Int32Array;
      /** [tokens]; null in a run without masks */
      lossMask: Uint8Array | null;
      /** CRC-32C of the states' bytes, as the engine answered it. */
      statesCrc32c: number;
    }
  | { kind: "skipped"; reason: string };

/** All that is needed to finish a pack whose states are written: plain data, so that it can go to a worker thread. */
export interface PackContents {
  layout: PackLayout;
  shape: PackShape;
  facts: PackFacts;
  /** One for each sample of the layout, in its order. */
  outcomes: readonly SampleOutcome[];
}

/** Bytes to write at `byte` of the object, or `zeroBytes` zeros where `bytes` is null. */
type PackPiece = { byte: number; bytes: Buffer } | { byte: number; bytes: null; zeroBytes: number };

export interface FinishedPack {
  /** All that the engine did not write: the header, each sample's ids and mask, zeros over each skipped sample. */
  pieces: PackPiece[];
  /** CRC-32C of each sample's whole range, in layout order. */
  samplesCrc32c: number[];
  /** CRC-32C of the whole object, what a PUT carries. */
  crc32c: number;
}

/**
 * Everything of a pack but its states, which the engine has already written in their place and is believed
 * about by their CRC alone: nothing is read back here, the upload computes all CRCs again from the file.
 * Throws a plain Error where the outcomes do not fit the layout: that is a bug.
 */
export function packPieces(contents: PackContents): FinishedPack {
  const { layout, outcomes } = contents;
  if (outcomes.length !== layout.samples.length) {
    throw new Error(
      `batch ${layout.batch} has ${layout.samples.length} samples, got ${outcomes.length} outcomes`,
    );
  }
  const pieces: PackPiece[] = [];
  const samplesCrc32c = layout.samples.map((sample, at) => {
    const outcome = outcomes[at]!;
    if (outcome.kind === "skipped") {
      const zeroBytes = sample.endByte - sample.startByte;
      pieces.push({ byte: sample.startByte, bytes: null, zeroBytes });
      return crc32cOfZeros(zeroBytes);
    }
    const prefix = samplePrefix(sample, outcome.ids, outcome.lossMask);
    pieces.push({ byte: sample.startByte, bytes: prefix });
    return crc32cCombine(crc32c(prefix), outcome.statesCrc32c, sample.statesBytes);
  });
  const header = packHeader(contents, samplesCrc32c);
  pieces.push({ byte: 0, bytes: header });
  let whole = crc32c(header);
  for (const [at, { startByte, endByte }] of layout.samples.entries()) {
    whole = crc32cCombine(whole, samplesCrc32c[at]!, endByte - startByte);
  }
  return { pieces, samplesCrc32c, crc32c: whole };
}

/**
 * Writes what packPieces made into the open pack file, the header last: a file whose header is zeros is
 * unfinished. Does not fsync. Throws the system's error, leaving the file unfinished.
 */
export function finishPack(fd: number, contents: PackContents): FinishedPack {
  const finished = packPieces(contents);
  for (const piece of finished.pieces) {
    if (piece.bytes) writeAllSync(fd, piece.bytes, piece.byte);
    else writeZerosSync(fd, piece.zeroBytes, piece.byte);
  }
  return finished;
}

/** Where the eight digits of the header's own CRC stand, from the object's first byte. */
export const HEADER_CRC_BYTE = 8 + '{"__metadata__":{"header_crc32c":"'.length;

/** CRC-32C of a header (8 length bytes included) with the eight digits of its own CRC taken as "00000000". */
export function headerCrc32c(header: Uint8Array): number {
  const before = crc32c(header.subarray(0, HEADER_CRC_BYTE));
  return crc32c(header.subarray(HEADER_CRC_BYTE + 8), crc32c(Buffer.from("00000000"), before));
}

function packHeader(
  { layout, shape, facts, outcomes }: PackContents,
  samplesCrc32c: readonly number[],
): Buffer {
  const tensors: TensorSpec[] = [];
  const crcs: string[] = [];
  const skips: string[] = [];
  for (const [at, { row, tokens, startByte, endByte }] of layout.samples.entries()) {
    const outcome = outcomes[at]!;
    crcs.push(`${row}:${crcToHex(samplesCrc32c[at]!)}`);
    if (outcome.kind === "skipped") {
      tensors.push({ name: `${row}.skipped`, dtype: "U8", shape: [endByte - startByte] });
      skips.push(`${row}:${skipReasonText(outcome.reason, SKIP_REASON_CHARS_MAX)}`);
      continue;
    }
    tensors.push({ name: `${row}.token_ids`, dtype: "I64", shape: [tokens] });
    if (shape.hasLossMask) tensors.push({ name: `${row}.loss_mask`, dtype: "I64", shape: [tokens] });
    tensors.push({ name: `${row}.hidden_states`, dtype: "BF16", shape: [tokens, shape.taps, shape.hidden] });
  }
  const metadata: Record<string, string> = {
    header_crc32c: "00000000",
    ...packMetadata(facts),
    batch: String(layout.batch),
    crc32c: crcs.join(";"),
  };
  if (skips.length > 0) metadata.skipped = skips.join(";");
  const header = buildHeader(tensors, metadata, layout.headerBytes);
  header.write(crcToHex(headerCrc32c(header)), HEADER_CRC_BYTE, "latin1");
  return header;
}

/** Ids, then mask, as little-endian I64: ids are never negative, so every high word stays zero. */
function samplePrefix(sample: SampleLayout, ids: Int32Array, lossMask: Uint8Array | null): Buffer {
  const { row, tokens } = sample;
  if (ids.length !== tokens || (lossMask !== null) !== (sample.maskByte !== null)) {
    throw new Error(`row ${row}: ${ids.length} ids for ${tokens} tokens, or a mask where none belongs`);
  }
  if (lossMask && lossMask.length !== tokens) {
    throw new Error(`row ${row}: a loss mask of ${lossMask.length} for ${tokens} tokens`);
  }
  const words = new Int32Array((sample.statesByte - sample.startByte) / 4);
  for (let i = 0; i < tokens; i += 1) {
    const id = ids[i]!;
    if (id < 0) throw new Error(`row ${row}: negative token id ${id}`);
    words[2 * i] = id;
  }
  if (lossMask) for (let i = 0; i < tokens; i += 1) words[2 * (tokens + i)] = lossMask[i]!;
  return Buffer.from(words.buffer);
}

const ZEROS = Buffer.alloc(2 ** 20);

function crc32cOfZeros(bytes: number): number {
  let crc = 0;
  for (let left = bytes; left > 0; left -= ZEROS.length) {
    crc = crc32c(left < ZEROS.length ? ZEROS.subarray(0, left) : ZEROS, crc);
  }
  return crc;
}

function writeZerosSync(fd: number, bytes: number, position: number): void {
  for (let done = 0; done < bytes; done += ZEROS.length) {
    writeAllSync(fd, ZEROS.subarray(0, Math.min(ZEROS.length, bytes - done)), position + done);
  }
}
