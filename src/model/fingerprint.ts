import { createHash } from "node:crypto";
import { readFileSync, realpathSync, renameSync, statSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { basename } from "node:path";
import { z } from "zod";
import { EXIT, RunError } from "../base/errors.ts";
import { ioBuffer } from "../base/io-buffer.ts";
import { configSha256 } from "./config.ts";
import { openWeights } from "./weights.ts";

/** What a run's identity holds of its model: the bytes of the weights, and what config.json says. */
export interface ModelFingerprint {
  /** sha256 (hex) over the lines "<file name> <sha256>" of `files`, in name order. */
  weights: string;
  /** sha256 (hex) of config.json, canonical. */
  config: string;
  files: { name: string; bytes: number; sha256: string }[];
}

export interface FingerprintOptions {
  /** JSON file that remembers each file's sha256 by inode, size and mtime; null: hash every time. */
  cacheFile: string | null;
  /** After each piece read. */
  onProgress?: (bytesDone: number, bytesTotal: number) => void;
  signal?: AbortSignal;
}

const CACHE_ENTRIES_MAX = 4_096;
const Cache = z.record(z.string(), z.string().regex(/^[0-9a-f]{64}$/));

/**
 * The fingerprint of the model in `dir`. Reads each weight file once (about 1 s a GB), unless its sha256 is
 * already known: from `cacheFile`, or from the Hugging Face cache, which names a blob by its sha256.
 * Throws (integrity) where a file changes while it is read, and as openWeights does.
 */
export async function fingerprintModel(dir: string, options: FingerprintOptions): Promise<ModelFingerprint> {
  const weights = openWeights(dir);
  const known = readCache(options.cacheFile);
  const files: ModelFingerprint["files"] = [];
  let bytesDone = 0;
  let isNew = false;
  for (const path of weights.files) {
    const before = statKey(path);
    let sha256 = blobName(path) ?? known.get(before.key);
    if (sha256 === undefined) {
      sha256 = await hashFile(path, options.signal, (bytes) =>
        options.onProgress?.(bytesDone + bytes, weights.bytes),
      );
      if (statKey(path).key !== before.key) throw changed(path);
      known.set(before.key, sha256);
      isNew = true;
    }
    bytesDone += before.bytes;
    options.onProgress?.(bytesDone, weights.bytes);
    files.push({ name: basename(path), bytes: before.bytes, sha256 });
  }
  if (isNew && options.cacheFile !== null) writeCache(options.cacheFile, known);
  const lines = files.map((file) => `${file.name} ${file.sha256}\n`).join("");
  return { weights: createHash("sha256").update(lines).digest("hex"), config: configSha256(dir), files };
}

/** A file of 64 hex digits behind the symlink is a blob of the Hugging Face cache, named by its sha256. */
function blobName(path: string): string | undefined {
  const name = basename(realpathSync(path));
  return /^[0-9a-f]{64}$/.test(name) ? name : undefined;
}

function statKey(path: string): { key: string; bytes: number } {
  const stat = statSync(path, { bigint: true });
  return { key: `${stat.dev}:${stat.ino}:${stat.size}:${stat.mtimeNs}`, bytes: Number(stat.size) };
}

async function hashFile(
  path: string,
  signal: AbortSignal | undefined,
  onBytes: (bytes: number) => void,
): Promise<string> {
  const hash = createHash("sha256");
  const buffer = ioBuffer(2 ** 20);
  const file = await open(path);
  try {
    for (let bytes = 0; ; ) {
      signal?.throwIfAborted();
      const { bytesRead } = await file.read(buffer, 0, buffer.length, bytes);
      if (bytesRead === 0) return hash.digest("hex");
      hash.update(buffer.subarray(0, bytesRead));
      bytes += bytesRead;
      onBytes(bytes);
    }
  } finally {
    await file.close();
  }
}

/** A cache that cannot be read is an empty one: the only loss is time. */
function readCache(path: string | null): Map<string, string> {
  if (path === null) return new Map();
  try {
    return new Map(Object.entries(Cache.parse(JSON.parse(readFileSync(path, "utf8")))));
  } catch {
    return new Map();
  }
}

/** Renamed into place, so that two processes never mix their bytes; the later one wins. */
function writeCache(path: string, known: Map<string, string>): void {
  const entries = [...known].slice(-CACHE_ENTRIES_MAX);
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    writeFileSync(temporary, JSON.stringify(Object.fromEntries(entries)));
    renameSync(temporary, path);
  } catch {
    // Without it the next run hashes again; a read-only home is no reason to stop this one.
  }
}

function changed(path: string): RunError {
  return new RunError({
    op: "fingerprint weights",
    subject: path,
    message: "the file changed while it was read",
    safe: "nothing was written",
    hint: "wait until whatever writes the model directory is done, then start again",
    exit: EXIT.integrity,
  });
}
