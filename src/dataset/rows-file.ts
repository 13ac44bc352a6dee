import { createHash } from "node:crypto";
import { closeSync, fstatSync, openSync } from "node:fs";
import { EXIT, RunError } from "../base/errors.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { headerLength, parseHeader, type SafetensorsHeader, type TensorEntry } from "../base/safetensors.ts";
import { contentHash, ROWS_FORMAT, type RowsFileInfo } from "./rows-file-format.ts";

/**
 * Opens a rows file and checks all but its content: header, metadata, and that offsets ascend from 0 to the end.
 * Costs one read of the offsets (80 MB for ten million rows). Throws a RunError (integrity) for any fault.
 */
export function openRowsFile(path: string): RowsFile {
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (cause) {
    throw new RunError({
      op: "open rows file",
      subject: path,
      message: "it cannot be opened",
      exit: EXIT.integrity,
      cause,
    });
  }
  try {
    return new RowsFile(path, fd);
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}

/** Recomputes the hash over the whole file; throws a RunError (integrity) where it is not what the header says. */
export function verifyRowsFile(path: string): RowsFileInfo {
  const file = openRowsFile(path);
  try {
    const { hash } = file.info;
    const found = file.computeHash();
    if (found !== hash) throw bad(path, `expected content of hash ${hash}, found ${found}`);
    return file.info;
  } finally {
    file.close();
  }
}

/** An open rows file. Reads are synchronous: a row is a few KiB and nearly always in the page cache. */
export class RowsFile {
  readonly path: string;
  readonly info: RowsFileInfo;
  readonly #fd: number;
  readonly #ids: TensorEntry;
  readonly #mask: TensorEntry | null;
  readonly #offsets: TensorEntry;
  readonly #lengths: Uint32Array;

  /** Use openRowsFile. */
  constructor(path: string, fd: number) {
    this.path = path;
    this.#fd = fd;
    const fileBytes = fstatSync(fd).size;
    const length = headerLength(readAt(fd, 0, Math.min(8, fileBytes), path), path, fileBytes);
    const header = parseHeader(readAt(fd, 0, 8 + length, path), path, fileBytes);
    this.info = parseInfo(header, path);
    this.#ids = tensor(header, "input_ids", "I32", this.info.tokens, path);
    this.#mask = this.info.hasMask ? tensor(header, "loss_mask", "U8", this.info.tokens, path) : null;
    this.#offsets = tensor(header, "offsets", "I64", this.info.rows + 1, path);
    this.#lengths = this.#readLengths();
  }

  /** [rows], tokens of each row from info.firstRow on. The array is shared: do not change it. */
  lengths(): Uint32Array {
    return this.#lengths;
  }

  /** [tokens of the row]; `row` counts from the dataset's start. */
  ids(row: number): Int32Array {
    const { start, tokens } = this.#place(row);
    const bytes = readAt(this.#fd, this.#ids.startByte + 4 * start, 4 * tokens, this.path);
    return new Int32Array(bytes.buffer, bytes.byteOffset, tokens);
  }

  /** [tokens of the row], 0 or 1; null where the dataset has no mask. */
  lossMask(row: number): Uint8Array | null {
    if (!this.#mask) return null;
    const { start, tokens } = this.#place(row);
    return readAt(this.#fd, this.#mask.startByte + start, tokens, this.path);
  }

  computeHash(): string {
    return contentHash({
      firstRow: this.info.firstRow,
      ids: this.#hashOf(this.#ids),
      mask: this.#mask ? this.#hashOf(this.#mask) : null,
      offsets: this.#hashOf(this.#offsets),
    });
  }

  close(): void {
    closeSync(this.#fd);
  }

  #place(row: number): { start: number; tokens: number } {
    const index = row - this.info.firstRow;
    const tokens = this.#lengths[index];
    if (tokens === undefined) {
      throw new Error(`row ${row} is outside rows ${this.info.firstRow}..+${this.info.rows} of ${this.path}`);
    }
    const bytes = readAt(this.#fd, this.#offsets.startByte + 8 * index, 8, this.path);
    return { start: offsetAt(new Uint32Array(bytes.buffer, bytes.byteOffset, 2), 0), tokens };
  }

  #readLengths(): Uint32Array {
    const { rows, tokens } = this.info;
    const lengths = new Uint32Array(rows);
    let previous = 0;
    for (let done = 0; done <= rows; ) {
      const count = Math.min(OFFSETS_AT_ONCE, rows + 1 - done);
      const bytes = readAt(this.#fd, this.#offsets.startByte + 8 * done, 8 * count, this.path);
      const words = new Uint32Array(bytes.buffer, bytes.byteOffset, 2 * count);
      for (let i = 0; i < count; i += 1) {
        const offset = offsetAt(words, i);
        const row = done + i - 1;
        if (
          offset < previous ||
          offset > tokens ||
          offset - previous > 0x7fffffff ||
          (row < 0 && offset !== 0)
        ) {
          throw bad(this.path, `offset ${done + i} is ${offset}, which does not follow ${previous}`);
        }
        if (row >= 0) lengths[row] = offset - previous;
        previous = offset;
      }
      done += count;
    }
    if (previous !== tokens) throw bad(this.path, `its offsets end at ${previous}, its ids at ${tokens}`);
    return lengths;
  }

  #hashOf(entry: TensorEntry): Buffer {
    const hash = createHash("sha256");
    for (let at = entry.startByte; at < entry.endByte; ) {
      const bytes = Math.min(HASH_BYTES_AT_ONCE, entry.endByte - at);
      hash.update(readAt(this.#fd, at, bytes, this.path));
      at += bytes;
    }
    return hash.digest();
  }
}

const OFFSETS_AT_ONCE = 512 * 1024;
const HASH_BYTES_AT_ONCE = 4 * 1024 * 1024;

/** An offset from its low and high words; over 2^53 it is Infinity, which no check lets pass. */
function offsetAt(words: Uint32Array, index: number): number {
  const high = words[2 * index + 1]!;
  return high < 2 ** 21 ? high * 2 ** 32 + words[2 * index]! : Number.POSITIVE_INFINITY;
}

function parseInfo({ metadata, tensors }: SafetensorsHeader, path: string): RowsFileInfo {
  if (metadata.format !== ROWS_FORMAT) {
    throw bad(path, `expected the format ${ROWS_FORMAT}, found ${metadata.format ?? "none"}`);
  }
  const count = (name: string, least = 0): number => {
    const value = Number(metadata[name] ?? Number.NaN);
    if (!Number.isSafeInteger(value) || value < least) {
      throw bad(path, `expected a count in its metadata as ${name}, found ${metadata[name]}`);
    }
    return value;
  };
  const { hash = "", source = "" } = metadata;
  if (!/^[0-9a-f]{64}$/.test(hash)) throw bad(path, `expected a sha256 in its metadata, found "${hash}"`);
  if (source !== "save-to-disk" && source !== "parquet" && source !== "jsonl") {
    throw bad(path, `its source "${source}" is none of save-to-disk, parquet, jsonl`);
  }
  return {
    firstRow: count("first_row"),
    rows: count("rows"),
    tokens: count("tokens"),
    maxId: count("max_id", -1),
    minId: count("min_id", -1),
    longest: count("longest"),
    duplicates: count("duplicates"),
    hash,
    hasMask: tensors.has("loss_mask"),
    sourceKind: source,
  };
}

function tensor(
  header: SafetensorsHeader,
  name: string,
  dtype: string,
  items: number,
  path: string,
): TensorEntry {
  const entry = header.tensors.get(name);
  if (!entry)
    throw bad(path, `expected a tensor ${name}, found ${[...header.tensors.keys()].join(", ") || "none"}`);
  if (entry.dtype !== dtype || entry.shape.length !== 1 || entry.shape[0] !== items) {
    throw bad(
      path,
      `expected ${name} to be ${dtype} [${items}], found ${entry.dtype} [${entry.shape.join(", ")}]`,
    );
  }
  return entry;
}

/** `length` bytes in memory of their own. */
function readAt(fd: number, position: number, length: number, path: string): Uint8Array {
  const cut = (endByte: number) => bad(path, `ends at byte ${endByte}, expected ${position + length}`);
  return readExactlySync(fd, new Uint8Array(length), { startByte: position, path, cut });
}

function bad(path: string, message: string): RunError {
  return new RunError({
    op: "read rows file",
    subject: path,
    message,
    safe: "the dataset it was made from and the store are untouched",
    hint: "remove the file: it is made again from the dataset, or fetched again from the run's inputs/",
    exit: EXIT.integrity,
  });
}
