import { EXIT, RunError } from "./errors.ts";

/** Bytes of one element of each dtype that the format knows. Source: safetensors README, "Format". */
export const DTYPE_BYTES = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  F8_E4M3: 1,
  F8_E5M2: 1,
  U16: 2,
  I16: 2,
  F16: 2,
  BF16: 2,
  U32: 4,
  I32: 4,
  F32: 4,
  U64: 8,
  I64: 8,
  F64: 8,
} as const;

export type Dtype = keyof typeof DTYPE_BYTES;

export interface TensorEntry {
  name: string;
  dtype: Dtype;
  shape: number[];
  /** [startByte, endByte) counted from the start of the FILE, not of the data. */
  startByte: number;
  endByte: number;
}

export interface SafetensorsHeader {
  metadata: Record<string, string>;
  tensors: Map<string, TensorEntry>;
  /** Where the data begins: 8 + the header's length. */
  dataByte: number;
  /** The size the file must have. */
  fileBytes: number;
}

/** The format's own cap on the header (safetensors' MAX_HEADER_SIZE). */
const HEADER_BYTES_MAX = 100_000_000;

/**
 * Reads the header length from the first 8 bytes of a file.
 * Throws (integrity) where it is over the cap or over `fileBytes`; never allocates by it.
 */
export function headerLength(first8: Uint8Array, subject: string, fileBytes?: number): number {
  if (first8.length < 8) throw bad(subject, `expected at least 8 bytes, found ${first8.length}`);
  const length = Number(new DataView(first8.buffer, first8.byteOffset, 8).getBigUint64(0, true));
  if (length > HEADER_BYTES_MAX)
    throw bad(subject, `the header claims ${length} bytes, over the cap of 100 MB`);
  if (fileBytes !== undefined && 8 + length > fileBytes) {
    throw bad(subject, `the header claims ${length} bytes, but the file has ${fileBytes}`);
  }
  return length;
}

/**
 * Parses `bytes`, the whole header with its 8 length bytes first, as hostile input.
 * Checks what the format demands: first byte "{", no duplicate keys, known dtypes, shape products that match
 * the offsets, offsets contiguous from 0 without holes or overlaps, and `fileBytes` exact where it is given.
 */
export function parseHeader(bytes: Uint8Array, subject: string, fileBytes?: number): SafetensorsHeader {
  const length = headerLength(bytes, subject, fileBytes);
  if (bytes.length < 8 + length)
    throw bad(subject, `expected ${8 + length} header bytes, found ${bytes.length}`);
  const text = decodeUtf8(bytes.subarray(8, 8 + length), subject);
  if (!text.startsWith("{")) throw bad(subject, 'the header does not begin with "{"');
  refuseDuplicateKeys(text, subject);
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw bad(subject, "the header is not JSON", cause);
  }
  const dataByte = 8 + length;
  const metadata: Record<string, string> = {};
  const entries: TensorEntry[] = [];
  for (const [name, value] of Object.entries(json as Record<string, unknown>)) {
    if (name === "__metadata__") {
      if (!isObject(value)) throw bad(subject, "__metadata__ is not an object");
      for (const [key, item] of Object.entries(value)) {
        if (typeof item !== "string") throw bad(subject, `__metadata__.${key} is not a string`);
        metadata[key] = item;
      }
    } else {
      entries.push(parseEntry(name, value, dataByte, subject));
    }
  }
  const endByte = refuseHoles(entries, dataByte, subject);
  if (fileBytes !== undefined && endByte !== fileBytes) {
    throw bad(subject, `the header describes ${endByte} bytes, but the file has ${fileBytes}`);
  }
  return { metadata, tensors: new Map(entries.map((e) => [e.name, e])), dataByte, fileBytes: endByte };
}

export interface TensorSpec {
  name: string;
  dtype: Dtype;
  shape: readonly number[];
}

/**
 * A header (8 length bytes included) for tensors that follow one another in the given order, padded with spaces
 * to `paddedBytes` in all, or else so that the data begins at a multiple of 64.
 * Throws a plain Error where it does not fit: that is a bug of the caller's bound.
 */
export function buildHeader(
  tensors: readonly TensorSpec[],
  metadata: Record<string, string>,
  paddedBytes?: number,
): Buffer {
  const json: Record<string, unknown> = {};
  if (Object.keys(metadata).length > 0) json.__metadata__ = metadata;
  let offset = 0;
  for (const { name, dtype, shape } of tensors) {
    const bytes = shape.reduce((product, n) => product * n, DTYPE_BYTES[dtype]);
    json[name] = { dtype, shape, data_offsets: [offset, offset + bytes] };
    offset += bytes;
  }
  const text = Buffer.from(JSON.stringify(json), "utf8");
  const total = paddedBytes ?? Math.ceil((8 + text.length) / 64) * 64;
  if (8 + text.length > total)
    throw new Error(`header of ${8 + text.length} bytes exceeds its bound ${total}`);
  const header = Buffer.alloc(total, 0x20);
  header.writeBigUInt64LE(BigInt(total - 8), 0);
  text.copy(header, 8);
  return header;
}

function parseEntry(name: string, value: unknown, dataByte: number, subject: string): TensorEntry {
  if (!isObject(value)) throw bad(subject, `tensor "${name}" is not an object`);
  const { dtype, shape, data_offsets: offsets } = value;
  if (typeof dtype !== "string" || !Object.hasOwn(DTYPE_BYTES, dtype)) {
    throw bad(subject, `tensor "${name}" has the unknown dtype ${JSON.stringify(dtype)}`);
  }
  if (!isCounts(shape)) throw bad(subject, `tensor "${name}" has the shape ${JSON.stringify(shape)}`);
  if (!isCounts(offsets) || offsets.length !== 2) {
    throw bad(subject, `tensor "${name}" has the offsets ${JSON.stringify(offsets)}`);
  }
  const bytes = shape.reduce((product, n) => product * BigInt(n), BigInt(DTYPE_BYTES[dtype as Dtype]));
  const [begin, end] = offsets as [number, number];
  if (BigInt(end) - BigInt(begin) !== bytes) {
    throw bad(subject, `tensor "${name}" needs ${bytes} bytes, its offsets span ${end - begin}`);
  }
  return { name, dtype: dtype as Dtype, shape, startByte: dataByte + begin, endByte: dataByte + end };
}

function refuseHoles(entries: TensorEntry[], dataByte: number, subject: string): number {
  let at = dataByte;
  for (const entry of [...entries].sort((a, b) => a.startByte - b.startByte || a.endByte - b.endByte)) {
    if (entry.startByte !== at) {
      const fault = entry.startByte > at ? "leaves a hole before" : "overlaps what stands before";
      throw bad(subject, `tensor "${entry.name}" ${fault} byte ${entry.startByte - dataByte} of the data`);
    }
    at = entry.endByte;
  }
  return at;
}

/** JSON.parse keeps the last of two equal keys without a word; a hostile header could show two readers two files. */
function refuseDuplicateKeys(text: string, subject: string): void {
  const stack: (Set<string> | null)[] = [];
  const token = /"(?:[^"\\]|\\.)*"(\s*:)?|[{}[\]]/g;
  for (let match = token.exec(text); match; match = token.exec(text)) {
    const [found, isKey] = match;
    if (found === "{") stack.push(new Set());
    else if (found === "[") stack.push(null);
    else if (found === "}" || found === "]") stack.pop();
    else if (isKey) {
      const raw = found.slice(0, found.lastIndexOf('"') + 1);
      let key = raw;
      try {
        key = JSON.parse(raw);
      } catch {
        // Not a JSON string after all: JSON.parse of the whole refuses it with its own message.
      }
      const keys = stack.at(-1);
      if (keys?.has(key)) throw bad(subject, `the key "${key}" stands twice in the header`);
      keys?.add(key);
    }
  }
}

function decodeUtf8(bytes: Uint8Array, subject: string): string {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch (cause) {
    throw bad(subject, "the header is not UTF-8", cause);
  }
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isCounts(value: unknown): value is number[] {
  return Array.isArray(value) && value.every((n) => Number.isSafeInteger(n) && n >= 0);
}

function bad(subject: string, message: string, cause?: unknown): RunError {
  return new RunError({
    op: "read safetensors header",
    subject,
    message,
    hint: "the file is cut or not safetensors: fetch it again",
    exit: EXIT.integrity,
    cause,
  });
}
