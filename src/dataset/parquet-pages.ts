import { brotliDecompressSync, crc32, gunzipSync } from "node:zlib";
import * as zlib from "node:zlib";
import type { ColumnMetaData, CompressionCodec, Encoding, PageHeader } from "hyparquet/src/types.js";
import { parquetHeader } from "hyparquet/src/column.js";
import { deltaBinaryUnpack } from "hyparquet/src/delta.js";
import { byteStreamSplit } from "hyparquet/src/encoding.js";
import { decompressLz4, decompressLz4Raw, decompressSnappy, decompressZstd } from "hyparquet-compressors";
import type { FileWindow } from "./file-window.ts";
import { type IntType, toInt32 } from "./integers.ts";

/*
 * One column chunk of integer lists, page by page, into typed arrays: a row group may be the whole of a 2 GB file, and
 * decoding it whole (as readers made for tables do) would take many times that. hyparquet supplies the footer, the page
 * headers and the rarer encodings. Source: parquet-format, README.md and Encodings.md.
 */

/** Writers aim at 1 MiB; a page must fit in memory twice. */
const PAGE_BYTES_MAX = 256 * 1024 * 1024;
const HEADER_BYTES = 32 * 1024;

/** What the pages of a list column look like, from the schema. */
export interface ListLevels {
  /** 0 or 1: with 0 the column is no list. */
  repetition: 1;
  /** Definition level of a value that is there. */
  value: number;
  /** From this level on the list has an item at this place; below it the list is empty. */
  item: number;
  /** Level of an empty list; below it the list is null. */
  empty: number;
}

/** One page: an entry for each value or empty list. Levels are a byte each. */
export interface ListPage {
  /** [entries], 0 begins a row. */
  repetition: Uint8Array;
  /** [entries] */
  definition: Uint8Array;
  /** The values that are there, fewer than entries where lists are empty. */
  values: Int32Array;
  /** Index of the first value that fits no int32, or -1. */
  misfit: number;
}

/** Reads the pages of one chunk in order. Throws plain Errors, which callers wrap with the file's name. */
export async function* readListPages(
  window: FileWindow,
  meta: ColumnMetaData,
  levels: ListLevels,
): AsyncGenerator<ListPage> {
  const offsets = [meta.data_page_offset, meta.dictionary_page_offset].filter((o) => o !== undefined && o > 0n);
  const startByte = Math.min(...offsets.map(Number));
  const endByte = startByte + Number(meta.total_compressed_size);
  if (!(startByte >= 4 && endByte <= window.fileBytes)) throw new Error("a column chunk lies outside the file");
  let dictionary: Decoded | null = null;
  let entries = 0;
  for (let at = startByte; entries < Number(meta.num_values); ) {
    if (at >= endByte) throw new Error(`expected ${meta.num_values} values, its pages hold ${entries}`);
    const head = await window.read(at, Math.min(HEADER_BYTES, endByte - at));
    const reader = { view: new DataView(head.buffer, head.byteOffset, head.length), offset: 0 };
    const header = parquetHeader(reader);
    const bodyByte = at + reader.offset;
    checkSizes(header, endByte - bodyByte);
    const body = await window.readNew(bodyByte, header.compressed_page_size);
    if (header.crc !== undefined && crc32(body) !== header.crc >>> 0) throw new Error("a page's checksum differs");
    at = bodyByte + header.compressed_page_size;
    if (header.type === "DICTIONARY_PAGE") {
      const count = header.dictionary_page_header?.num_values ?? 0;
      const bytes = decompress(body, header.uncompressed_page_size, meta.codec);
      dictionary = decodePlain(bytes, 0, count, intTypeOf(meta));
    } else if (header.type === "DATA_PAGE" || header.type === "DATA_PAGE_V2") {
      const page = decodePage(body, header, meta, levels, dictionary);
      entries += page.repetition.length;
      yield page;
    }
    // Index pages and kinds to come are skipped, as the format asks.
  }
}

function checkSizes(header: PageHeader, bytesLeft: number): void {
  const { compressed_page_size: compressed, uncompressed_page_size: plain } = header;
  if (!(compressed >= 0 && compressed <= bytesLeft)) throw new Error("a page lies outside its column chunk");
  if (!(plain >= 0 && plain <= PAGE_BYTES_MAX)) {
    throw new Error(`a page of ${plain} bytes is over the cap of ${PAGE_BYTES_MAX}: write it with smaller pages`);
  }
}

interface Decoded {
  values: Int32Array;
  misfit: number;
}

function decodePage(
  body: Uint8Array,
  header: PageHeader,
  meta: ColumnMetaData,
  levels: ListLevels,
  dictionary: Decoded | null,
): ListPage {
  const v1 = header.data_page_header;
  const v2 = header.data_page_header_v2;
  const entries = (v1 ?? v2)?.num_values ?? -1;
  // An entry costs at least one bit run somewhere, but a run may be long: bound by the page cap instead.
  if (!(entries >= 0 && entries <= PAGE_BYTES_MAX)) throw new Error("a page without a sane count of values");
  const repetition = new Uint8Array(entries);
  const definition = new Uint8Array(entries);
  const definitionBits = 32 - Math.clz32(levels.value);
  let bytes: Uint8Array;
  let at = 0;
  if (v1) {
    bytes = decompress(body, header.uncompressed_page_size, meta.codec);
    at = readSizedLevels(bytes, at, 1, repetition);
    at = readSizedLevels(bytes, at, definitionBits, definition);
  } else if (v2) {
    const repetitionBytes = v2.repetition_levels_byte_length;
    const levelBytes = repetitionBytes + v2.definition_levels_byte_length;
    if (!(repetitionBytes >= 0 && levelBytes >= repetitionBytes && levelBytes <= body.length)) {
      throw new Error("levels lie outside their page");
    }
    decodeHybrid(body, 0, repetitionBytes, 1, repetition);
    decodeHybrid(body, repetitionBytes, levelBytes, definitionBits, definition);
    const rest = body.subarray(levelBytes);
    const plainBytes = header.uncompressed_page_size - levelBytes;
    bytes = v2.is_compressed === false || plainBytes === 0 ? rest : decompress(rest, plainBytes, meta.codec);
  } else {
    throw new Error("a data page without its header");
  }
  let count = 0;
  for (let i = 0; i < entries; i += 1) if (definition[i] === levels.value) count += 1;
  const encoding = (v1 ?? v2)?.encoding;
  return { repetition, definition, ...decodeValues(bytes, at, count, encoding, meta, dictionary) };
}

function decodeValues(
  bytes: Uint8Array,
  at: number,
  count: number,
  encoding: Encoding | undefined,
  meta: ColumnMetaData,
  dictionary: Decoded | null,
): Decoded {
  const type = intTypeOf(meta);
  if (count === 0) return { values: new Int32Array(0), misfit: -1 };
  switch (encoding) {
    case "PLAIN":
      return decodePlain(bytes, at, count, type);
    case "PLAIN_DICTIONARY":
    case "RLE_DICTIONARY": {
      if (!dictionary) throw new Error("a dictionary-encoded page before any dictionary");
      const values = new Int32Array(count);
      decodeHybrid(bytes, at + 1, bytes.length, bytes[at] ?? 0, values);
      return lookUp(values, dictionary);
    }
    case "RLE": {
      // Of booleans only; a length of four bytes stands before.
      const values = new Int32Array(count);
      decodeHybrid(bytes, at + 4, bytes.length, 1, values);
      return { values, misfit: -1 };
    }
    case "DELTA_BINARY_PACKED": {
      const reader = { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.length), offset: at };
      const output = type.bits === 64 ? new BigInt64Array(count) : new Int32Array(count);
      deltaBinaryUnpack(reader, count, output);
      return toInt32(new Uint8Array(output.buffer), type, count);
    }
    case "BYTE_STREAM_SPLIT": {
      const reader = { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.length), offset: at };
      const output = byteStreamSplit(reader, count, meta.type, undefined) as Int32Array | BigInt64Array;
      return toInt32(new Uint8Array(output.buffer), type, count);
    }
    default:
      throw new Error(`the encoding ${encoding} is not supported for integers`);
  }
}

/** Null where a column's physical type is no integer. */
export function intTypeOf(meta: ColumnMetaData): IntType {
  switch (meta.type) {
    case "INT32":
      return { bits: 32, signed: true };
    case "INT64":
      return { bits: 64, signed: true };
    case "BOOLEAN":
      return { bits: 1, signed: false };
    default:
      throw new Error(`expected integers, found ${meta.type}`);
  }
}

function decodePlain(bytes: Uint8Array, at: number, count: number, type: IntType): Decoded {
  const length = Math.ceil((count * type.bits) / 8);
  if (at + length > bytes.length) throw new Error("a page holds fewer values than it claims");
  // A copy, since values in a page are aligned to nothing.
  return toInt32(bytes.slice(at, at + length), type, count);
}

function lookUp(indices: Int32Array, dictionary: Decoded): Decoded {
  const { values: entries, misfit: badEntry } = dictionary;
  let misfit = -1;
  for (let i = 0; i < indices.length; i += 1) {
    const index = indices[i]!;
    if (index >= entries.length) throw new Error("an index outside the dictionary");
    if (index === badEntry && misfit < 0) misfit = i;
    indices[i] = entries[index]!;
  }
  return { values: indices, misfit };
}

/** Levels behind their length in four bytes, as data pages of version 1 have them. Returns where they end. */
function readSizedLevels(bytes: Uint8Array, at: number, bits: number, into: Uint8Array): number {
  if (bits === 0) return at;
  if (at + 4 > bytes.length) throw new Error("levels lie outside their page");
  const start = at + 4;
  const end = start + new DataView(bytes.buffer, bytes.byteOffset, bytes.length).getUint32(at, true);
  if (end > bytes.length) throw new Error("levels lie outside their page");
  decodeHybrid(bytes, start, end, bits, into);
  return end;
}

/** The RLE / bit-packing hybrid. Fills `into` or throws. Source: Encodings.md, "RLE = 3". */
export function decodeHybrid(
  bytes: Uint8Array,
  start: number,
  end: number,
  bits: number,
  into: Uint8Array | Int32Array,
): void {
  if (bits > 24) throw new Error(`a bit width of ${bits} is not supported`);
  const mask = (1 << bits) - 1;
  const valueBytes = (bits + 7) >> 3;
  const count = into.length;
  let filled = 0;
  let at = start;
  while (filled < count) {
    let header = 0;
    for (let shift = 0; ; shift += 7) {
      if (at >= end || shift > 28) throw new Error("a run of values ends too early");
      const byte = bytes[at]!;
      at += 1;
      header |= (byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    header >>>= 0;
    if (header & 1) {
      const values = Math.min((header >>> 1) * 8, count - filled);
      if (at + Math.ceil((values * bits) / 8) > end) throw new Error("a run of values ends too early");
      let held = 0;
      let heldBits = 0;
      let from = at;
      for (const stop = filled + values; filled < stop; filled += 1) {
        while (heldBits < bits) {
          held |= bytes[from]! << heldBits;
          from += 1;
          heldBits += 8;
        }
        into[filled] = held & mask;
        held >>>= bits;
        heldBits -= bits;
      }
      at += (header >>> 1) * bits;
    } else {
      const run = Math.min(header >>> 1, count - filled);
      if (at + valueBytes > end) throw new Error("a run of values ends too early");
      let value = 0;
      for (let i = 0; i < valueBytes; i += 1) value |= bytes[at + i]! << (8 * i);
      at += valueBytes;
      into.fill(value, filled, filled + run);
      // A run of nothing would never end.
      if (run === 0) throw new Error("an empty run of values");
      filled += run;
    }
  }
}

/** Present from Node 22.15 on, and several times as fast as the JavaScript one. */
const zstdDecompressSync = (zlib as { zstdDecompressSync?: (input: Uint8Array, options: object) => Uint8Array })
  .zstdDecompressSync;

function decompress(input: Uint8Array, outputBytes: number, codec: CompressionCodec): Uint8Array {
  const output = decompressAny(input, outputBytes, codec);
  if (output.length !== outputBytes) {
    throw new Error(`a page of ${outputBytes} bytes decompressed to ${output.length}`);
  }
  return output;
}

function decompressAny(input: Uint8Array, outputBytes: number, codec: CompressionCodec): Uint8Array {
  const limit = { maxOutputLength: Math.max(1, outputBytes) };
  switch (codec) {
    case "UNCOMPRESSED":
      return input;
    case "SNAPPY":
      return decompressSnappy(input, outputBytes);
    case "GZIP":
      return gunzipSync(input, limit);
    case "BROTLI":
      return brotliDecompressSync(input, limit);
    case "ZSTD":
      return zstdDecompressSync?.(input, limit) ?? decompressZstd(input, new Uint8Array(outputBytes));
    case "LZ4":
      return decompressLz4(input, outputBytes);
    case "LZ4_RAW":
      return decompressLz4Raw(input, outputBytes);
    case "LZO":
      throw new Error("the codec LZO is not supported");
  }
}
