import { createHash, randomBytes } from "node:crypto";
import { closeSync, fsyncSync, openSync, renameSync, rmSync } from "node:fs";
import { dirname } from "node:path";
import { crc32 } from "node:zlib";
import { crc32c } from "../base/checksum.ts";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { fsyncDirectory, writeAllSync } from "../base/publish.ts";
import { readUpToSync } from "../base/read-exactly.ts";
import { buildHeader, type TensorSpec } from "../base/safetensors.ts";
import { badDataset, type RowBatch, type RowSource } from "./rows.ts";
import { contentHash, ROWS_FORMAT, type RowsFileInfo } from "./rows-file-format.ts";

export interface WriteRowsOptions {
  /** Dataset rows [startRow, endRow); default all. An end past the last row is the last row. */
  startRow?: number;
  endRow?: number | null;
  signal?: AbortSignal;
  /** Called after each batch of rows with what was written so far. */
  onProgress?: (progress: { rows: number; tokens: number }) => void;
}

/** The header is written last, over the room left for it: its counts are known only then. */
const HEADER_BYTES = 4096;

/**
 * One sequential pass over `source` into one rows file at `path`, in bounded memory. The file appears whole or not at
 * all; one that is there is replaced, since the same dataset gives the same bytes. Throws a RunError for rows that are
 * no rows, for no rows at all (configuration), and for a disk that is full or not writable (disk).
 */
export async function writeRowsFile(
  source: RowSource,
  path: string,
  options: WriteRowsOptions = {},
): Promise<RowsFileInfo> {
  const writer = new RowsFileWriter(path, options.startRow ?? 0);
  try {
    await copyRows(source, writer, options);
    return writer.finish(source.kind);
  } catch (error) {
    throw explain(error, path);
  } finally {
    writer.discard();
  }
}

async function copyRows(source: RowSource, writer: RowsFileWriter, options: WriteRowsOptions): Promise<void> {
  const { startRow = 0, signal, onProgress } = options;
  const endRow = options.endRow ?? Number.POSITIVE_INFINITY;
  let row = 0;
  for await (const batch of source.batches(signal)) {
    const rows = batch.lengths.length;
    writer.add(cutBatch(batch, Math.max(0, startRow - row), Math.min(rows, endRow - row)));
    row += rows;
    onProgress?.({ rows: writer.rows, tokens: writer.tokens });
    if (row >= endRow) break;
  }
  if (writer.rows > 0) return;
  throw badDataset(
    source.path,
    row === 0
      ? "expected rows, found none"
      : `expected rows from ${startRow} up to ${endRow}, the dataset has ${row}`,
    { hint: row === 0 ? undefined : "rows are counted from 0: see --rows and --limit" },
  );
}

/** Rows [start, end) of a batch; views, no copies. */
function cutBatch(batch: RowBatch, start: number, end: number): RowBatch {
  if (start <= 0 && end >= batch.lengths.length) return batch;
  const first = Math.min(start, batch.lengths.length);
  const last = Math.max(first, end);
  const startToken = sum(batch.lengths.subarray(0, first));
  const endToken = startToken + sum(batch.lengths.subarray(first, last));
  return {
    ids: batch.ids.subarray(startToken, endToken),
    lengths: batch.lengths.subarray(first, last),
    lossMask: batch.lossMask ? batch.lossMask.subarray(startToken, endToken) : null,
  };
}

function sum(values: Int32Array): number {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

/** A rows file in the making: ids go straight into it, what comes behind them into temporaries beside it. */
class RowsFileWriter {
  readonly #path: string;
  readonly #firstRow: number;
  readonly #body: TemporaryFile;
  readonly #mask: TemporaryFile;
  readonly #offsets: TemporaryFile;
  readonly #rowHashes: TemporaryFile;
  readonly #idsHash = createHash("sha256");
  readonly #maskHash = createHash("sha256");
  readonly #offsetsHash = createHash("sha256");
  #hasMask = false;
  #maxId = -1;
  #minId = 0x7fffffff;
  #longest = 0;
  rows = 0;
  tokens = 0;

  constructor(path: string, firstRow: number) {
    this.#path = path;
    this.#firstRow = firstRow;
    const stem = `${path}.${randomBytes(6).toString("hex")}`;
    const made: TemporaryFile[] = [];
    try {
      for (const name of ["rows", "mask", "offsets", "hashes"])
        made.push(new TemporaryFile(`${stem}.${name}.tmp`));
      [this.#body, this.#mask, this.#offsets, this.#rowHashes] = made as [
        TemporaryFile,
        TemporaryFile,
        TemporaryFile,
        TemporaryFile,
      ];
      this.#body.append(Buffer.alloc(HEADER_BYTES));
      this.#addOffsets(Float64Array.of(0));
    } catch (error) {
      for (const file of made) file.discard();
      throw explain(error, path);
    }
  }

  add({ ids, lengths, lossMask }: RowBatch): void {
    const idBytes = bytesOf(ids);
    this.#idsHash.update(idBytes);
    this.#body.append(idBytes);
    if (lossMask) {
      this.#hasMask = true;
      this.#maskHash.update(lossMask);
      this.#mask.append(lossMask);
    }
    this.#seeIds(ids);
    this.#addRows(idBytes, lengths, lossMask);
  }

  finish(sourceKind: RowSource["kind"]): RowsFileInfo {
    const info: RowsFileInfo = {
      firstRow: this.#firstRow,
      rows: this.rows,
      tokens: this.tokens,
      maxId: this.#maxId,
      minId: this.tokens > 0 ? this.#minId : -1,
      longest: this.#longest,
      duplicates: countDuplicates(this.#rowHashes, this.rows),
      hash: contentHash({
        firstRow: this.#firstRow,
        ids: this.#idsHash.digest(),
        mask: this.#hasMask ? this.#maskHash.digest() : null,
        offsets: this.#offsetsHash.digest(),
      }),
      hasMask: this.#hasMask,
      sourceKind,
    };
    const needsPadding = this.tokens % 2 === 1;
    if (needsPadding) this.#body.append(Buffer.alloc(4));
    this.#body.appendFile(this.#offsets);
    if (this.#hasMask) this.#body.appendFile(this.#mask);
    this.#body.publish(
      this.#path,
      buildHeader(tensorsOf(info, needsPadding), metadataOf(info), HEADER_BYTES),
    );
    return info;
  }

  /** Removes the temporaries; harmless after finish. */
  discard(): void {
    for (const file of [this.#body, this.#mask, this.#offsets, this.#rowHashes]) file.discard();
  }

  #seeIds(ids: Int32Array): void {
    let max = this.#maxId;
    let min = this.#minId;
    for (let i = 0; i < ids.length; i += 1) {
      const id = ids[i]!;
      if (id > max) max = id;
      if (id < min) min = id;
    }
    this.#maxId = max;
    this.#minId = min;
  }

  #addRows(idBytes: Uint8Array, lengths: Int32Array, lossMask: Uint8Array | null): void {
    const offsets = new Float64Array(lengths.length);
    const hashes = new Uint32Array(2 * lengths.length);
    let token = 0;
    for (let i = 0; i < lengths.length; i += 1) {
      const length = lengths[i]!;
      if (length > this.#longest) this.#longest = length;
      // Two CRCs of different polynomials: 64 bits for a statistic, at a twentieth of what a sha256 of each row costs.
      const ids = idBytes.subarray(4 * token, 4 * (token + length));
      const mask = lossMask?.subarray(token, token + length);
      hashes[2 * i] = mask ? crc32c(mask, crc32c(ids)) : crc32c(ids);
      hashes[2 * i + 1] = mask ? crc32(mask, crc32(ids)) : crc32(ids);
      token += length;
      offsets[i] = this.tokens + token;
    }
    this.#addOffsets(offsets);
    this.#rowHashes.append(bytesOf(hashes));
    this.rows += lengths.length;
    this.tokens += token;
  }

  #addOffsets(offsets: Float64Array): void {
    const words = new Uint32Array(2 * offsets.length);
    for (let i = 0; i < offsets.length; i += 1) {
      words[2 * i] = offsets[i]! % 2 ** 32;
      words[2 * i + 1] = Math.floor(offsets[i]! / 2 ** 32);
    }
    this.#offsetsHash.update(words);
    this.#offsets.append(bytesOf(words));
  }
}

function tensorsOf(info: RowsFileInfo, needsPadding: boolean): TensorSpec[] {
  const tensors: TensorSpec[] = [{ name: "input_ids", dtype: "I32", shape: [info.tokens] }];
  if (needsPadding) tensors.push({ name: "padding", dtype: "I32", shape: [1] });
  tensors.push({ name: "offsets", dtype: "I64", shape: [info.rows + 1] });
  if (info.hasMask) tensors.push({ name: "loss_mask", dtype: "U8", shape: [info.tokens] });
  return tensors;
}

function metadataOf(info: RowsFileInfo): Record<string, string> {
  return {
    format: ROWS_FORMAT,
    first_row: String(info.firstRow),
    rows: String(info.rows),
    tokens: String(info.tokens),
    max_id: String(info.maxId),
    min_id: String(info.minId),
    longest: String(info.longest),
    duplicates: String(info.duplicates),
    hash: info.hash,
    source: info.sourceKind,
  };
}

/** So many 8-byte hashes are sorted at once (64 MB); more rows take more passes over them, not more memory. */
const HASHES_AT_ONCE = 8 * 1024 * 1024;

/** Rows whose hash an earlier row has. */
function countDuplicates(hashes: TemporaryFile, rows: number): number {
  const parts = Math.max(1, Math.ceil(rows / HASHES_AT_ONCE));
  let duplicates = 0;
  for (let part = 0; part < parts; part += 1) {
    // Hashes fall into parts evenly, but not exactly so; equal ones fall into the same part however many they are.
    let chosen = new BigUint64Array(Math.min(rows, Math.ceil((rows / parts) * 1.1) + 1024));
    let count = 0;
    for (const bytes of hashes.chunks()) {
      const words = new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
      const values = new BigUint64Array(bytes.buffer, bytes.byteOffset, bytes.length / 8);
      for (let i = 0; i < values.length; i += 1) {
        if (parts > 1 && words[2 * i]! % parts !== part) continue;
        if (count === chosen.length) {
          const larger = new BigUint64Array(2 * chosen.length);
          larger.set(chosen);
          chosen = larger;
        }
        chosen[count] = values[i]!;
        count += 1;
      }
    }
    const sorted = chosen.subarray(0, count).sort();
    for (let i = 1; i < count; i += 1) if (sorted[i] === sorted[i - 1]) duplicates += 1;
  }
  return duplicates;
}

const BUFFER_BYTES = 1024 * 1024;

/** A file beside its target that is published or removed. Small appends are gathered. */
class TemporaryFile {
  readonly #path: string;
  readonly #fd: number;
  readonly #buffer = Buffer.allocUnsafeSlow(BUFFER_BYTES);
  #buffered = 0;
  #isOpen = true;

  constructor(path: string) {
    this.#path = path;
    this.#fd = openSync(path, "wx+", 0o600);
  }

  append(bytes: Uint8Array): void {
    if (this.#buffered + bytes.length > BUFFER_BYTES) this.#flush();
    if (bytes.length >= BUFFER_BYTES) {
      writeAllSync(this.#fd, bytes, null);
    } else {
      this.#buffer.set(bytes, this.#buffered);
      this.#buffered += bytes.length;
    }
  }

  appendFile(other: TemporaryFile): void {
    for (const chunk of other.chunks()) this.append(chunk);
  }

  /** What was written, from the start; each chunk is a multiple of 8 bytes but for the last, and is reused. */
  *chunks(): Generator<Uint8Array> {
    this.#flush();
    const buffer = new Uint8Array(4 * BUFFER_BYTES);
    for (let position = 0; ; ) {
      const filled = readUpToSync(this.#fd, buffer, position);
      if (filled === 0) return;
      yield buffer.subarray(0, filled);
      position += filled;
    }
  }

  /** Writes `header` over the start, makes all of it durable, and gives it its name. */
  publish(path: string, header: Uint8Array): void {
    this.#flush();
    writeAllSync(this.#fd, header, 0);
    fsyncSync(this.#fd);
    renameSync(this.#path, path);
    fsyncDirectory(dirname(path));
  }

  discard(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    closeSync(this.#fd);
    rmSync(this.#path, { force: true });
  }

  #flush(): void {
    writeAllSync(this.#fd, this.#buffer.subarray(0, this.#buffered), null);
    this.#buffered = 0;
  }
}

function bytesOf(values: Int32Array | Uint32Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** A system error of the disk's, as one that says what to do; anything else as it is. */
function explain(error: unknown, path: string): unknown {
  const code = errnoOf(error);
  if (error instanceof RunError || code === undefined || !/^E[A-Z0-9]+$/.test(code)) return error;
  if ((error as NodeJS.ErrnoException).syscall === "read") return error;
  return new RunError({
    op: "write rows file",
    subject: path,
    message: code === "ENOSPC" ? "the disk is full" : `it cannot be written (${code})`,
    safe: "the dataset was only read; the unfinished file was removed",
    hint:
      code === "ENOSPC"
        ? "free space there: a rows file needs 5 bytes a token, and half as much again while it is made"
        : "name a place that is there and may be written",
    exit: EXIT.disk,
    cause: error,
  });
}
