import * as zlib from "node:zlib";
import { brotliDecompressSync, crc32, gunzipSync } from "node:zlib";
import { parquetHeader } from "hyparquet/src/column.js";
import { deltaBinaryUnpack } from "hyparquet/src/delta.js";
import { byteStreamSplit } from "hyparquet/src/encoding.js";
import { readVarInt } from "hyparquet/src/thrift.js";
import type {
  ColumnMetaData,
  CompressionCodec,
  DataReader,
  Encoding,
  PageHeader,
} from "hyparquet/src/types.js";
import { decompressLz4, decompressLz4Raw, decompressSnappy, decompressZstd } from "hyparquet-compressors";
import type { FileWindow } from "./file-window.ts";
import { type IntType, toInt32 } from "./integers.ts";
import { HybridDecoder } from "./rle-hybrid.ts";

/*
 * One column chunk of integer lists, page by page, into typed arrays: a row group may be the whole of a 2 GB file, and
 * decoding it whole (as readers made for tables do) would take many times that. hyparquet supplies the footer, the page
 * headers and the rarer encodings. Source: parquet-format, README.md and Encodings.md.
 */

/** Writers aim at 1 MiB; a page must fit in memory twice. */
const PAGE_BYTES_MAX = 256 * 1024 * 1024;
const HEADER_BYTES = 32 * 1024;
/** Entries handed on at once: a page of one bit a value may hold a hundred million. */
const SLICE_ENTRIES = 256 * 1024;

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

/** A page or a slice of one: an entry for each value or empty list. Levels are a byte each. */
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
  const offsets = [meta.data_page_offset, meta.dictionary_page_offset].filter(
    (o) => o !== undefined && o > 0n,
  );
  const startByte = Math.min(...offsets.map(Number));
  const endByte = startByte + Number(meta.total_compressed_size);
  if (!(startByte >= 4 && endByte <= window.fileBytes))
    throw new Error("a column chunk lies outside the file");
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
    if (header.crc !== undefined && crc32(body) !== header.crc >>> 0)
      throw new Error("a page's checksum differs");
    at = bodyByte + header.compressed_page_size;
    if (header.type === "DICTIONARY_PAGE") {
      const count = header.dictionary_page_header?.num_values ?? 0;
      const bytes = decompress(body, header.uncompressed_page_size, meta.codec);
      dictionary = decodePlain(bytes, 0, 0, count, intTypeOf(meta));
    } else if (header.type === "DATA_PAGE" || header.type === "DATA_PAGE_V2") {
      for (const page of decodePage(body, header, meta, levels, dictionary)) {
        entries += page.repetition.length;
        yield page;
      }
    }
    // Index pages and kinds to come are skipped, as the format asks.
  }
}

function checkSizes(header: PageHeader, bytesLeft: number): void {
  const { compressed_page_size: compressed, uncompressed_page_size: plain } = header;
  if (!(compressed >= 0 && compressed <= bytesLeft)) throw new Error("a page lies outside its column chunk");
  if (!(plain >= 0 && plain <= PAGE_BYTES_MAX)) {
    throw new Error(
      `a page of ${plain} bytes is over the cap of ${PAGE_BYTES_MAX}: write it with smaller pages`,
    );
  }
}

interface Decoded {
  values: Int32Array;
  misfit: number;
}

/** A page's levels and values, some entries at a time. */
function* decodePage(
  body: Uint8Array,
  header: PageHeader,
  meta: ColumnMetaData,
  levels: ListLevels,
  dictionary: Decoded | null,
): Generator<ListPage> {
  const v1 = header.data_page_header;
  const v2 = header.data_page_header_v2;
  const entries = (v1 ?? v2)?.num_values ?? -1;
  if (!(entries >= 0)) throw new Error("a data page without its count of values");
  const definitionBits = 32 - Math.clz32(levels.value);
  let bytes: Uint8Array;
  let repetitions: HybridDecoder;
  let definitions: HybridDecoder;
  let valuesAt = 0;
  if (v1) {
    bytes = decompress(body, header.uncompressed_page_size, meta.codec);
    const definitionAt = sizedEnd(bytes, 0);
    valuesAt = sizedEnd(bytes, definitionAt);
    repetitions = new HybridDecoder(bytes, 4, definitionAt, 1);
    definitions = new HybridDecoder(bytes, definitionAt + 4, valuesAt, definitionBits);
  } else if (v2) {
    const definitionAt = v2.repetition_levels_byte_length;
    const levelBytes = definitionAt + v2.definition_levels_byte_length;
    repetitions = new HybridDecoder(body, 0, definitionAt, 1);
    definitions = new HybridDecoder(body, definitionAt, levelBytes, definitionBits);
    const rest = body.subarray(levelBytes);
    const plainBytes = header.uncompressed_page_size - levelBytes;
    bytes = v2.is_compressed === false || plainBytes === 0 ? rest : decompress(rest, plainBytes, meta.codec);
  } else {
    throw new Error("a data page without its header");
  }
  const values = valueReader(bytes, valuesAt, (v1 ?? v2)?.encoding, meta, dictionary);
  for (let done = 0; done < entries; done += SLICE_ENTRIES) {
    const repetition = new Uint8Array(Math.min(SLICE_ENTRIES, entries - done));
    const definition = new Uint8Array(repetition.length);
    repetitions.fill(repetition);
    definitions.fill(definition);
    let count = 0;
    for (let i = 0; i < definition.length; i += 1) if (definition[i] === levels.value) count += 1;
    yield { repetition, definition, ...values(count) };
  }
}

/** A function that decodes the page's next `count` values. */
function valueReader(
  bytes: Uint8Array,
  start: number,
  encoding: Encoding | undefined,
  meta: ColumnMetaData,
  dictionary: Decoded | null,
): (count: number) => Decoded {
  const type = intTypeOf(meta);
  switch (encoding) {
    case "PLAIN": {
      let done = 0;
      return (count) => {
        const decoded = decodePlain(bytes, start, done, count, type);
        done += count;
        return decoded;
      };
    }
    case "PLAIN_DICTIONARY":
    case "RLE_DICTIONARY": {
      // An all-empty page may hold no values at all, not even their bit width.
      const indices =
        start < bytes.length ? new HybridDecoder(bytes, start + 1, bytes.length, bytes[start]!) : null;
      return (count) => {
        const values = new Int32Array(count);
        if (count === 0) return { values, misfit: -1 };
        if (!dictionary || !indices) throw new Error("a dictionary-encoded page before any dictionary");
        indices.fill(values);
        return lookUp(values, dictionary);
      };
    }
    case "RLE": {
      // Of booleans only; their length stands in four bytes before.
      const bits = new HybridDecoder(bytes, start + 4, bytes.length, 1);
      return (count) => {
        const values = new Int32Array(count);
        bits.fill(values);
        return { values, misfit: -1 };
      };
    }
    case "DELTA_BINARY_PACKED":
    case "BYTE_STREAM_SPLIT": {
      // At most 64 values a byte here, so hyparquet may decode the page whole.
      const reader = { view: new DataView(bytes.buffer, bytes.byteOffset, bytes.length), offset: start };
      let whole: Decoded | null = null;
      let done = 0;
      return (count) => {
        whole ??= decodeWhole(reader, encoding, meta, type);
        if (done + count > whole.values.length) throw new Error("a page holds fewer values than it claims");
        const values = whole.values.subarray(done, done + count);
        const misfit = whole.misfit >= done && whole.misfit < done + count ? whole.misfit - done : -1;
        done += count;
        return { values, misfit };
      };
    }
    default:
      throw new Error(`the encoding ${encoding} is not supported for integers`);
  }
}

function decodeWhole(
  reader: DataReader,
  encoding: "DELTA_BINARY_PACKED" | "BYTE_STREAM_SPLIT",
  meta: ColumnMetaData,
  type: IntType,
): Decoded {
  const bytesLeft = reader.view.byteLength - reader.offset;
  let output: Int32Array | BigInt64Array;
  if (encoding === "BYTE_STREAM_SPLIT") {
    const count = Math.floor((bytesLeft * 8) / type.bits);
    output = byteStreamSplit(reader, count, meta.type, undefined) as Int32Array | BigInt64Array;
  } else {
    const count = deltaCount(reader);
    // A block of 128 equal deltas is a few bytes; a count beyond that is a lie.
    if (count > bytesLeft * 128) throw new Error("a page holds fewer values than it claims");
    output = type.bits === 64 ? new BigInt64Array(count) : new Int32Array(count);
    if (count > 0) deltaBinaryUnpack(reader, count, output);
  }
  return toInt32(new Uint8Array(output.buffer), type, output.length);
}

/** The total count in a delta header (block size, miniblocks, count), leaving the reader where it is. */
function deltaCount({ view, offset }: DataReader): number {
  const reader = { view, offset };
  readVarInt(reader);
  readVarInt(reader);
  return readVarInt(reader) >>> 0;
}

/** Throws where a column's physical type is no integer. */
function intTypeOf(meta: ColumnMetaData): IntType {
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

/** Values [done, done + count) of a plain page. */
function decodePlain(bytes: Uint8Array, start: number, done: number, count: number, type: IntType): Decoded {
  const firstByte = Math.floor((done * type.bits) / 8);
  const skip = done - (firstByte * 8) / type.bits;
  const length = Math.ceil(((skip + count) * type.bits) / 8);
  if (start + firstByte + length > bytes.length) throw new Error("a page holds fewer values than it claims");
  // A copy, since values in a page are aligned to nothing (and not slice(): a Buffer's does not copy).
  const raw = new Uint8Array(bytes.subarray(start + firstByte, start + firstByte + length));
  const { values, misfit } = toInt32(raw, type, skip + count);
  return { values: skip > 0 ? values.subarray(skip) : values, misfit };
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

/** Where levels end that stand behind their length in four bytes, as data pages of version 1 have them. */
function sizedEnd(bytes: Uint8Array, at: number): number {
  if (at + 4 > bytes.length) throw new Error("levels lie outside their page");
  return at + 4 + new DataView(bytes.buffer, bytes.byteOffset, bytes.length).getUint32(at, true);
}

/** Present from Node 22.15 on, and several times as fast as the JavaScript one. */
const zstdDecompressSync = (
  zlib as { zstdDecompressSync?: (input: Uint8Array, options: object) => Uint8Array }
).zstdDecompressSync;

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
      return zstdDecompressSync ? zstdDecompressSync(input, limit) : decompressZstdSlowly(input, outputBytes);
    case "LZ4":
      return decompressLz4(input, outputBytes);
    case "LZ4_RAW":
      return decompressLz4Raw(input, outputBytes);
    case "LZO":
      throw new Error("the codec LZO is not supported");
  }
}

function decompressZstdSlowly(input: Uint8Array, outputBytes: number): Uint8Array {
  const output = new Uint8Array(outputBytes);
  // fzstd 0.1.1 asks `output == 1`, which makes a string of the whole array: 50 times the work of decompressing it.
  Object.defineProperty(output, "toString", { value: () => "" });
  return decompressZstd(input, output);
}
