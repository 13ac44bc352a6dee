import { createHash } from "node:crypto";
import { closeSync, mkdirSync, openSync, readFileSync, renameSync, rmSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { publishReplacing, writeAllSync } from "../base/publish.ts";
import { openDataset } from "../dataset/open.ts";
import type { RowSource } from "../dataset/rows.ts";
import { openRowsFile, type RowsFile, verifyRowsFile } from "../dataset/rows-file.ts";
import { writeRowsFile } from "../dataset/rows-file-writer.ts";
import type { Store } from "../store/store.ts";
import type { RunRecord } from "./record.ts";

/** Which rows of which dataset: rows [startRow, endRow) of it. */
export interface DatasetChoice {
  path: string;
  split: string | null;
  startRow: number;
  /** null: to the end. */
  endRow: number | null;
}

export interface RowsOptions {
  directory: string;
  log: Log;
  onProgress?: (progress: { rows: number; tokens: number }) => void;
  signal?: AbortSignal;
}

/** How much of a stored rows file is fetched at a time. */
const PIECE_BYTES = 64 * 2 ** 20;

const Remembered = z.object({ fingerprint: z.string(), file: z.string() });

/**
 * The dataset as a rows file in `directory`. The pass over the dataset is made once: while the dataset's files keep
 * size, time and inode, the rows file of the last pass serves.
 */
export async function rowsOfDataset(choice: DatasetChoice, options: RowsOptions): Promise<RowsFile> {
  const { directory, log } = options;
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const source = await openDataset(choice.path, { split: choice.split ?? undefined });
  const fingerprint = fingerprintOf(source, choice);
  const memory = join(directory, "rows-of-dataset.json");
  const remembered = recall(memory);
  if (remembered?.fingerprint === fingerprint) {
    try {
      return openRowsFile(join(directory, remembered.file));
    } catch (error) {
      log.warn("rows.cache_unusable", { error: error instanceof Error ? error.message : "unknown" });
    }
  }
  const unnamed = join(directory, "rows-new.safetensors");
  rmSync(unnamed, { force: true });
  const info = await writeRowsFile(source, unnamed, {
    startRow: choice.startRow,
    endRow: choice.endRow,
    onProgress: options.onProgress,
    signal: options.signal,
  });
  const file = rowsFileName(info.hash);
  renameSync(unnamed, join(directory, file));
  publishReplacing(memory, Buffer.from(JSON.stringify({ fingerprint, file })));
  return openRowsFile(join(directory, file));
}

/** The rows file that the store holds under `inputs/`, fetched once into `directory` and held against its hash. */
export async function rowsOfStore(store: Store, record: RunRecord, options: RowsOptions): Promise<RowsFile> {
  mkdirSync(options.directory, { recursive: true, mode: 0o700 });
  const path = join(options.directory, rowsFileName(record.identity.rows));
  const standing = openIfThere(path);
  if (standing?.info.hash === record.identity.rows) return standing;
  standing?.close();
  const temporary = `${path}.part`;
  await fetchObject(store, record.files.rows, temporary, options.signal);
  verifyRowsFile(temporary);
  const fetched = openRowsFile(temporary);
  const { hash } = fetched.info;
  fetched.close();
  if (hash !== record.identity.rows) {
    rmSync(temporary, { force: true });
    throw damaged(store, record.files.rows, "its content is not that which run.json names");
  }
  renameSync(temporary, path);
  return openRowsFile(path);
}

async function fetchObject(store: Store, key: string, path: string, signal?: AbortSignal): Promise<void> {
  const info = await store.head(key, signal);
  if (!info) throw damaged(store, key, "run.json names it, and it is not there");
  const fd = openSync(path, "w", 0o600);
  try {
    for (let startByte = 0; startByte < info.bytes; startByte += PIECE_BYTES) {
      const range = { startByte, endByte: Math.min(info.bytes, startByte + PIECE_BYTES) };
      const piece = await store.get(key, range, signal);
      if (!piece) throw damaged(store, key, "it vanished while it was read");
      writeAllSync(fd, piece, startByte);
    }
  } finally {
    closeSync(fd);
  }
}

function rowsFileName(hash: string): string {
  return `rows-${hash.slice(0, 16)}.safetensors`;
}

function fingerprintOf(source: RowSource, choice: DatasetChoice): string {
  const facts = { kind: source.kind, files: source.files, startRow: choice.startRow, endRow: choice.endRow };
  return createHash("sha256").update(JSON.stringify(facts)).digest("hex");
}

function recall(path: string): z.infer<typeof Remembered> | null {
  try {
    return Remembered.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch {
    // Without it the pass over the dataset is made again.
    return null;
  }
}

function openIfThere(path: string): RowsFile | null {
  try {
    return openRowsFile(path);
  } catch (error) {
    if (errnoOf(error) === "ENOENT" || error instanceof RunError) return null;
    throw error;
  }
}

function damaged(store: Store, key: string, message: string): RunError {
  return new RunError({
    op: "read inputs",
    subject: `${store.address}/${key}`,
    message,
    safe: "packs are not touched",
    hint: "start again with --dataset, which makes it anew",
    exit: EXIT.integrity,
  });
}
