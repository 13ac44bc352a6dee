import { crc32c, crcFromHex, crcToHex } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { parseHeader, type TensorEntry } from "../base/safetensors.ts";
import type { PackLayout, SampleLayout } from "./layout.ts";
import { PACK_FORMAT } from "./metadata.ts";
import { HEADER_CRC_BYTE, headerCrc32c } from "./writer.ts";

/** One sample as a pack's header tells it; offsets count from the object's first byte. */
export interface PackSample {
  row: number;
  /** 0 for a skipped sample: its header no longer says. */
  tokens: number;
  startByte: number;
  endByte: number;
  /** Of the whole range. */
  crc32c: number;
  /** Why the engine could not do it (cut to 48 characters), or null where it did. */
  skipped: string | null;
}

export interface PackHeader {
  /** Hash of the run's identity: `run_id` of run.json. */
  identity: string;
  batch: number;
  /** All of `__metadata__`, the taps in every numbering included. */
  metadata: Record<string, string>;
  /** What the samples agree on; null in a pack that holds skipped samples only. */
  shape: { taps: number; hidden: number; hasLossMask: boolean } | null;
  /** In the order of their bytes. */
  samples: PackSample[];
  /** With the 8 length bytes. */
  headerBytes: number;
  /** The object's size. */
  bytes: number;
}

/**
 * Reads a pack's header (`bytes` begins with the object's first byte and holds at least the whole header) as
 * hostile input. Throws (integrity) on anything that packPieces does not write, its own CRC included, and
 * where `fileBytes` is not the size that the header describes.
 */
export function readPackHeader(bytes: Uint8Array, subject: string, fileBytes?: number): PackHeader {
  const { metadata, tensors, dataByte, fileBytes: size } = parseHeader(bytes, subject, fileBytes);
  if (metadata.format !== PACK_FORMAT) {
    throw bad(
      subject,
      `expected the format ${PACK_FORMAT}, found ${metadata.format?.slice(0, 64) ?? "none"}: not a pack of this version`,
    );
  }
  const found = new TextDecoder("latin1").decode(bytes.subarray(HEADER_CRC_BYTE, HEADER_CRC_BYTE + 8));
  const expected = crcToHex(headerCrc32c(bytes.subarray(0, dataByte)));
  if (metadata.header_crc32c !== found || found !== expected) {
    throw bad(
      subject,
      `the header's own CRC-32C is ${expected}, it claims ${metadata.header_crc32c?.slice(0, 16)}`,
    );
  }
  if (!/^[0-9a-f]{64}$/.test(metadata.identity ?? "")) throw bad(subject, "the pack names no run identity");
  const batch = countOf(metadata.batch, subject, "batch");
  const crcs = byRow(metadata.crc32c ?? "", subject);
  const reasons = byRow(metadata.skipped ?? "", subject);
  const { samples, shape } = groupSamples([...tensors.values()], subject);
  for (const sample of samples) {
    sample.crc32c = crcFromHex(crcs.get(sample.row) ?? "");
    if (Number.isNaN(sample.crc32c)) throw bad(subject, `row ${sample.row} has no CRC-32C`);
    if (sample.skipped === null) continue;
    sample.skipped = reasons.get(sample.row) ?? "unknown";
  }
  if (crcs.size !== samples.length)
    throw bad(subject, `${crcs.size} CRCs stand beside ${samples.length} samples`);
  return {
    identity: metadata.identity!,
    batch,
    metadata,
    shape,
    samples,
    headerBytes: dataByte,
    bytes: size,
  };
}

/** What an object is to the batch whose key it has. */
export type PackVerdict =
  | { kind: "same" }
  | { kind: "other-identity"; found: string }
  /** Torn or alien: not what any run of this identity writes there. */
  | { kind: "alien"; message: string };

/** Holds a header against what the plan says of its batch. */
export function checkPackHeader(header: PackHeader, layout: PackLayout, identity: string): PackVerdict {
  if (header.identity !== identity) return { kind: "other-identity", found: header.identity };
  const alien = (message: string): PackVerdict => ({ kind: "alien", message });
  if (header.batch !== layout.batch)
    return alien(`expected batch ${layout.batch}, found batch ${header.batch}`);
  if (header.bytes !== layout.bytes || header.headerBytes !== layout.headerBytes) {
    return alien(
      `expected ${layout.bytes} bytes with a header of ${layout.headerBytes}, found ${header.bytes} with ${header.headerBytes}`,
    );
  }
  if (header.samples.length !== layout.samples.length) {
    return alien(`expected ${layout.samples.length} samples, found ${header.samples.length}`);
  }
  for (const [at, planned] of layout.samples.entries()) {
    const sample = header.samples[at]!;
    const placed = sample.startByte === planned.startByte && sample.endByte === planned.endByte;
    const sized = sample.skipped !== null || sample.tokens === planned.tokens;
    if (sample.row !== planned.row || !placed || !sized) {
      return alien(
        `expected row ${planned.row} at bytes ${planned.startByte}-${planned.endByte}, found row ${sample.row} at ${sample.startByte}-${sample.endByte}`,
      );
    }
  }
  return { kind: "same" };
}

/** Throws (integrity) unless `bytes`, the whole range of `sample`, has the CRC that the header gives it. */
export function checkSampleCrc(bytes: Uint8Array, sample: PackSample, subject: string): void {
  const found = crc32c(bytes);
  if (found === sample.crc32c) return;
  throw bad(
    subject,
    `row ${sample.row} should have the CRC-32C ${crcToHex(sample.crc32c)}, its bytes have ${crcToHex(found)}`,
  );
}

export type DecodedSample =
  | {
      kind: "sample";
      row: number;
      /** [tokens] */
      ids: Int32Array;
      /** [tokens], or null without a mask */
      lossMask: Uint8Array | null;
      /** [tokens, taps, hidden], bf16 bits, row-major; a view of `bytes` where their place allows it */
      states: Uint16Array;
    }
  /** All bytes are zero: states that are all zero are never published, so this is a skipped sample. */
  | { kind: "skipped"; row: number };

/**
 * Takes apart one sample's bytes, [startByte, endByte) of its object: no header is needed.
 * Throws (integrity) where they are too few or hold an id or mask that no writer makes.
 */
export function decodeSample(bytes: Uint8Array, layout: SampleLayout, subject: string): DecodedSample {
  const { row, tokens, startByte } = layout;
  if (bytes.length !== layout.endByte - startByte) {
    throw bad(subject, `row ${row} has ${layout.endByte - startByte} bytes, got ${bytes.length}`);
  }
  const statesAt = layout.statesByte - startByte;
  const ids = narrowI64(bytes.subarray(0, 8 * tokens), row, 0x7fffffff, subject);
  const states = asUint16(bytes.subarray(statesAt));
  if (ids.every((id) => id === 0) && bytes.every((byte) => byte === 0)) return { kind: "skipped", row };
  const lossMask =
    layout.maskByte === null
      ? null
      : Uint8Array.from(narrowI64(bytes.subarray(8 * tokens, 16 * tokens), row, 0xff, subject));
  return { kind: "sample", row, ids, lossMask, states };
}

/** Tensors in the order of their bytes as samples: ids, mask where there is one, states; or `skipped`. */
function groupSamples(
  entries: TensorEntry[],
  subject: string,
): { samples: PackSample[]; shape: PackHeader["shape"] } {
  entries.sort((a, b) => a.startByte - b.startByte);
  const samples: PackSample[] = [];
  const rows = new Set<number>();
  let shape: PackHeader["shape"] = null;
  for (let at = 0; at < entries.length; ) {
    const first = entries[at]!;
    const { row, part } = splitName(first.name, subject);
    if (rows.has(row)) throw bad(subject, `row ${row} stands twice in the pack`);
    rows.add(row);
    if (part === "skipped") {
      expectTensor(first, "U8", [first.endByte - first.startByte], subject);
      samples.push({ ...range(first, first), row, tokens: 0, crc32c: Number.NaN, skipped: "unknown" });
      at += 1;
      continue;
    }
    const hasLossMask = entries[at + 1]?.name === `${row}.loss_mask`;
    const states = entries[at + (hasLossMask ? 2 : 1)];
    if (part !== "token_ids" || states?.name !== `${row}.hidden_states`) {
      throw bad(subject, `row ${row} is not its token ids, loss mask and hidden states in this order`);
    }
    const [tokens = 0, taps = 0, hidden = 0] = states.shape;
    shape ??= { taps, hidden, hasLossMask };
    expectTensor(first, "I64", [tokens], subject);
    if (hasLossMask) expectTensor(entries[at + 1]!, "I64", [tokens], subject);
    expectTensor(states, "BF16", [tokens, shape.taps, shape.hidden], subject);
    if (hasLossMask !== shape.hasLossMask) throw bad(subject, `row ${row}: a loss mask in some samples only`);
    samples.push({ ...range(first, states), row, tokens, crc32c: Number.NaN, skipped: null });
    at += hasLossMask ? 3 : 2;
  }
  return { samples, shape };
}

function range(first: TensorEntry, last: TensorEntry): { startByte: number; endByte: number } {
  return { startByte: first.startByte, endByte: last.endByte };
}

function splitName(name: string, subject: string): { row: number; part: string } {
  const match = /^(0|[1-9]\d{0,9})\.(token_ids|loss_mask|hidden_states|skipped)$/.exec(name);
  if (!match) throw bad(subject, `a pack holds no tensor named "${name.slice(0, 64)}"`);
  return { row: Number(match[1]), part: match[2]! };
}

function expectTensor(entry: TensorEntry, dtype: string, shape: number[], subject: string): void {
  const found = `${entry.dtype} [${entry.shape.slice(0, 8).join(", ")}]`;
  const expected = `${dtype} [${shape.join(", ")}]`;
  if (found !== expected || entry.shape.length !== shape.length || entry.startByte === entry.endByte) {
    throw bad(subject, `tensor "${entry.name}": expected ${expected}, found ${found}`);
  }
}

/** "12:text;13:text" by row. */
function byRow(text: string, subject: string): Map<number, string> {
  const found = new Map<number, string>();
  for (const item of text === "" ? [] : text.split(";")) {
    const colon = item.indexOf(":");
    const row = countOf(item.slice(0, Math.max(colon, 0)), subject, "row");
    if (found.has(row)) throw bad(subject, `row ${row} stands twice in the metadata`);
    found.set(row, item.slice(colon + 1));
  }
  return found;
}

function countOf(text: string | undefined, subject: string, what: string): number {
  if (text === undefined || !/^(0|[1-9]\d{0,9})$/.test(text)) {
    throw bad(subject, `the metadata names the ${what} "${text?.slice(0, 32)}"`);
  }
  return Number(text);
}

/** Little-endian I64 whose values fit [0, max], as numbers. */
function narrowI64(bytes: Uint8Array, row: number, max: number, subject: string): Int32Array {
  const aligned = bytes.byteOffset % 4 === 0 ? bytes : new Uint8Array(bytes);
  const words = new Uint32Array(aligned.buffer, aligned.byteOffset, aligned.length / 4);
  const values = new Int32Array(words.length / 2);
  for (let i = 0; i < values.length; i += 1) {
    const low = words[2 * i]!;
    if (low > max || words[2 * i + 1] !== 0) {
      throw bad(subject, `row ${row}: position ${i} holds an id or mask outside 0..${max}`);
    }
    values[i] = low;
  }
  return values;
}

function asUint16(bytes: Uint8Array): Uint16Array {
  const aligned = bytes.byteOffset % 2 === 0 ? bytes : new Uint8Array(bytes);
  return new Uint16Array(aligned.buffer, aligned.byteOffset, aligned.length / 2);
}

function bad(subject: string, message: string): RunError {
  return new RunError({
    op: "read pack",
    subject,
    message,
    safe: "nothing was changed",
    hint: "forebay verify --deep finds every damaged pack of the run",
    exit: EXIT.integrity,
  });
}
