import {
  closeSync,
  existsSync,
  fstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  rmdirSync,
  rmSync,
  type Stats,
  statSync,
  unlinkSync,
} from "node:fs";
import { dirname, join, resolve, sep } from "node:path";
import type { ByteRange } from "../base/bytes.ts";
import { crc32c, crcToHex } from "../base/checksum.ts";
import { errnoOf } from "../base/errors.ts";
import { ioBuffer } from "../base/io-buffer.ts";
import { fsyncDirectory, publishNew, publishReplacing } from "../base/publish.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { formatAddress } from "./address.ts";
import { checkKey } from "./keys.ts";
import {
  type BodySource,
  type ObjectInfo,
  type OpenedStore,
  type PutOptions,
  type PutOutcome,
  StoreError,
  type StoreErrorKind,
  type StoreSpec,
} from "./store.ts";

export type DirectorySpec = Extract<StoreSpec, { kind: "directory" }>;

/** What publish.ts calls its temporaries: a crash may leave one, and it is never an object. */
const TEMPORARY = /\.[0-9a-f]{12}\.tmp$/;
const TEMPORARY_MS_MAX = 60 * 60_000;

/**
 * A run's objects as files. A name that exists is complete and durable: publish.ts. Keys become paths below
 * `directory/name`; two keys of which one is the other's folder cannot both exist.
 * The file work is synchronous: packs are put from worker threads, and libuv's pool is shared by all of them.
 */
export class DirectoryStore implements OpenedStore {
  readonly address: string;
  readonly #root: string;
  /** Directories that are known to exist and to survive a power cut. */
  readonly #made = new Set<string>();

  constructor(spec: DirectorySpec) {
    this.address = formatAddress(spec);
    this.#root = resolve(spec.directory, spec.name);
  }

  async put(key: string, body: Uint8Array | BodySource, options: PutOptions): Promise<PutOutcome> {
    // A directory is verified by reading back, and whoever sends from a source asks for checksums first.
    if (!(body instanceof Uint8Array)) throw new Error("a directory takes bytes only, not a source");
    const path = this.#path(key);
    options.signal?.throwIfAborted();
    const crc = crc32c(body);
    if (crc !== options.crc32c >>> 0) {
      throw new StoreError({
        kind: "refused-checksum",
        op: "put object",
        subject: path,
        message: `expected bytes with CRC-32C ${crcToHex(options.crc32c)}, found ${crcToHex(crc)}`,
        hint: "the bytes changed between their checksum and the store: memory or disk of this machine",
      });
    }
    return this.#act("put object", path, () => {
      // Twice, because someone may remove an empty directory between our making it and our using it.
      for (let last = false; ; last = true) {
        this.#makeDirectory(dirname(path));
        try {
          if (!options.createOnly) publishReplacing(path, body);
          else if (!publishNew(path, body)) return { kind: "exists" };
          return { kind: "created", etag: null };
        } catch (error) {
          if (last || errnoOf(error) !== "ENOENT") throw error;
          this.#made.clear();
        }
      }
    });
  }

  async head(key: string, signal?: AbortSignal): Promise<ObjectInfo | null> {
    const path = this.#path(key);
    signal?.throwIfAborted();
    return this.#act("head object", path, () => {
      const stat = statIfExists(path);
      return stat?.isFile() ? infoOf(key, stat) : null;
    });
  }

  async get(key: string, range: ByteRange | null, signal?: AbortSignal): Promise<Buffer | null> {
    const path = this.#path(key);
    signal?.throwIfAborted();
    return this.#act("get object", path, () => {
      const fd = openIfExists(path);
      if (fd === null) return null;
      try {
        const { size } = fstatSync(fd);
        const { startByte, endByte } = range ?? { startByte: 0, endByte: size };
        if (endByte > size) {
          throw new StoreError({
            kind: "corrupt-answer",
            op: "get object",
            subject: path,
            message: `expected bytes ${startByte}-${endByte - 1}, the object has ${size}`,
          });
        }
        return readExactlySync(fd, ioBuffer(Math.max(0, endByte - startByte)), { startByte, path });
      } finally {
        closeSync(fd);
      }
    });
  }

  async *list(prefix: string, signal?: AbortSignal): AsyncIterable<ObjectInfo> {
    // Only the folder part of the prefix can be walked to; the rest is compared.
    const folder = prefix.slice(0, prefix.lastIndexOf("/") + 1);
    if (folder !== "") checkKey(folder.slice(0, -1), this.address);
    yield* this.#walk(folder, prefix, signal);
  }

  async *folders(prefix: string, signal?: AbortSignal): AsyncIterable<string> {
    if (prefix !== "") checkKey(prefix.replace(/\/$/, ""), this.address);
    signal?.throwIfAborted();
    const entries = this.#act("list objects", join(this.#root, prefix), () =>
      readEntries(join(this.#root, prefix)),
    );
    for (const entry of entries) if (entry.isDirectory()) yield entry.name;
  }

  async delete(key: string, signal?: AbortSignal): Promise<void> {
    const path = this.#path(key);
    signal?.throwIfAborted();
    this.#act("delete object", path, () => {
      try {
        unlinkSync(path);
      } catch (error) {
        if (isAbsent(error)) return;
        throw error;
      }
      fsyncDirectory(dirname(path));
      this.#dropEmpty(dirname(path));
    });
  }

  /** Makes the directory where it is missing: unlike a bucket, it is nobody else's to make. */
  async check(signal?: AbortSignal): Promise<void> {
    signal?.throwIfAborted();
    this.#act("open store", this.#root, () => this.#makeDirectory(this.#root));
    await this.#sweep("");
  }

  reloadCredentials(): void {}

  close(): void {}

  /** Removes the temporaries of writers that died long ago; a living one is done within minutes. */
  async #sweep(folder: string): Promise<void> {
    await new Promise((resolve) => setImmediate(resolve));
    const directory = join(this.#root, folder);
    for (const entry of this.#act("open store", directory, () => readEntries(directory))) {
      if (entry.isDirectory()) await this.#sweep(join(folder, entry.name));
      if (!entry.isFile() || !TEMPORARY.test(entry.name)) continue;
      const path = join(directory, entry.name);
      this.#act("open store", path, () => {
        const stat = statIfExists(path);
        if (stat && Date.now() - stat.mtimeMs > TEMPORARY_MS_MAX) rmSync(path, { force: true });
      });
    }
  }

  async *#walk(folder: string, prefix: string, signal?: AbortSignal): AsyncIterable<ObjectInfo> {
    signal?.throwIfAborted();
    // A run has up to 4,096 folders: let timers and sockets have their turn between them.
    await new Promise((resolve) => setImmediate(resolve));
    const directory = join(this.#root, folder);
    const entries = this.#act("list objects", directory, () => readEntries(directory));
    for (const entry of entries) {
      const key = folder + entry.name;
      if (entry.isDirectory()) {
        const below = `${key}/`;
        if (below.startsWith(prefix) || prefix.startsWith(below)) yield* this.#walk(below, prefix, signal);
      } else if (entry.isFile() && key.startsWith(prefix) && !TEMPORARY.test(key)) {
        const stat = this.#act("list objects", directory, () => statIfExists(join(directory, entry.name)));
        if (stat) yield infoOf(key, stat);
      }
    }
  }

  #path(key: string): string {
    checkKey(key, this.address);
    return join(this.#root, key);
  }

  /** Makes `directory` and what is missing above it, each name durable before anything is put below it. */
  #makeDirectory(directory: string): void {
    if (this.#made.has(directory)) return;
    const parent = dirname(directory);
    if (!existsSync(directory)) {
      if (parent !== directory) this.#makeDirectory(parent);
      try {
        mkdirSync(directory, { mode: 0o755 });
      } catch (error) {
        if (errnoOf(error) !== "EEXIST") throw error;
      }
    }
    // Also where it was there before: whoever made it may have died between that and this.
    fsyncDirectory(parent);
    this.#made.add(directory);
  }

  /** A bucket has no empty folders; neither should a directory that plays one. */
  #dropEmpty(directory: string): void {
    for (let at = directory; at.startsWith(this.#root + sep); at = dirname(at)) {
      try {
        rmdirSync(at);
        this.#made.delete(at);
      } catch {
        // Not empty, or gone already: both mean that there is nothing to drop.
        return;
      }
    }
  }

  #act<T>(op: string, path: string, act: () => T): T {
    try {
      return act();
    } catch (error) {
      if (error instanceof StoreError) throw error;
      throw errorOfFile(error, op, path);
    }
  }
}

function infoOf(key: string, stat: { size: number; mtimeMs: number }): ObjectInfo {
  return {
    key,
    bytes: stat.size,
    etag: null,
    crc32c: null,
    lastModifiedMs: stat.mtimeMs,
    serverDateMs: Date.now(),
  };
}

function statIfExists(path: string): Stats | null {
  try {
    return statSync(path);
  } catch (error) {
    if (isAbsent(error)) return null;
    throw error;
  }
}

function openIfExists(path: string): number | null {
  try {
    const fd = openSync(path, "r");
    if (fstatSync(fd).isFile()) return fd;
    closeSync(fd);
    return null;
  } catch (error) {
    if (isAbsent(error)) return null;
    throw error;
  }
}

function readEntries(directory: string) {
  try {
    return readdirSync(directory, { withFileTypes: true });
  } catch (error) {
    if (isAbsent(error)) return [];
    throw error;
  }
}

/** ENOTDIR: a key below a key that is a file; there can be no such object. */
function isAbsent(error: unknown): boolean {
  const errno = errnoOf(error);
  return errno === "ENOENT" || errno === "ENOTDIR";
}

const KINDS: Record<string, { kind: StoreErrorKind; message: string; hint?: string }> = {
  ENOSPC: { kind: "full", message: "the disk is full", hint: "make room; the run goes on by itself" },
  EDQUOT: {
    kind: "full",
    message: "the disk quota is used up",
    hint: "make room; the run goes on by itself",
  },
  EROFS: { kind: "read-only", message: "the file system is read-only", hint: "check dmesg, then remount it" },
  EACCES: { kind: "denied", message: "no permission", hint: "check owner and mode of the directory" },
  EPERM: {
    kind: "denied",
    message: "not permitted",
    hint: "check owner, mode and attributes; hard links must be allowed",
  },
  EMFILE: { kind: "unavailable", message: "no file descriptor left", hint: "raise ulimit -n" },
  ENFILE: { kind: "unavailable", message: "no file descriptor left on this machine" },
  ENOTDIR: { kind: "io", message: "a file stands where a directory is needed" },
  ENOTSUP: {
    kind: "unsupported",
    message: "the file system has no hard links",
    hint: "use another directory",
  },
};

function errorOfFile(cause: unknown, op: string, path: string): StoreError {
  const errno = errnoOf(cause);
  const known = errno ? KINDS[errno] : undefined;
  return new StoreError({
    kind: known?.kind ?? "io",
    op,
    subject: path,
    message: `${known?.message ?? "the disk refused"} (${errno ?? (cause as Error).message})`,
    hint: known?.hint,
    code: errno,
    cause,
  });
}
