import { constants, type Stats } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { EXIT, errnoOf } from "../base/errors.ts";
import { ioBuffer } from "../base/io-buffer.ts";
import { readExactly } from "../base/read-exactly.ts";
import { badDataset, type SourceFile } from "./rows.ts";

/**
 * Small reads fetch a window ahead that grows while they go on forwards, as the kernel's readahead does: a million tiny
 * record batches must not be a million system calls, and one header before a large body must not fetch it twice.
 */
const WINDOW_BYTES_MIN = 64 * 1024;
const WINDOW_BYTES_MAX = 4 * 1024 * 1024;

/** Positioned reads of one file through a sliding window. */
export class FileWindow {
  readonly path: string;
  readonly file: SourceFile;
  readonly #handle: FileHandle;
  #buffer = Buffer.alloc(0);
  #start = 0;
  #end = 0;
  #aheadBytes = WINDOW_BYTES_MIN;

  private constructor(path: string, handle: FileHandle, stats: Stats) {
    this.path = path;
    this.#handle = handle;
    this.file = sourceFile(path, stats);
  }

  /** Throws (configuration) where there is no such file or it may not be read. */
  static async open(path: string): Promise<FileWindow> {
    let handle: FileHandle;
    try {
      handle = await open(path, constants.O_RDONLY);
    } catch (cause) {
      throw cannotRead(path, cause);
    }
    return new FileWindow(path, handle, await handle.stat());
  }

  get fileBytes(): number {
    return this.file.bytes;
  }

  /** The bytes where the window already holds them, valid until the next read; else null. */
  peek(position: number, length: number): Uint8Array | null {
    if (position < this.#start || position + length > this.#end) return null;
    return this.#buffer.subarray(position - this.#start, position - this.#start + length);
  }

  /** `length` bytes at `position`, valid until the next read. Throws (integrity) where the file ends before. */
  async read(position: number, length: number): Promise<Uint8Array> {
    const held = this.peek(position, length);
    if (held) return held;
    this.#needs(position, length);
    if (length > WINDOW_BYTES_MIN / 2) return this.readNew(position, length);
    const goesOn = position >= this.#start && position <= this.#end + WINDOW_BYTES_MIN;
    this.#aheadBytes = goesOn ? Math.min(2 * this.#aheadBytes, WINDOW_BYTES_MAX) : WINDOW_BYTES_MIN;
    if (this.#buffer.length < this.#aheadBytes) this.#buffer = ioBuffer(this.#aheadBytes);
    const wanted = Math.min(this.#aheadBytes, this.fileBytes - position);
    this.#start = position;
    this.#end = position;
    await this.#fill(this.#buffer.subarray(0, wanted), position);
    this.#end = position + wanted;
    return this.#buffer.subarray(0, length);
  }

  /** `length` bytes at `position` in memory of their own, aligned for any typed array. */
  async readNew(position: number, length: number): Promise<Uint8Array> {
    this.#needs(position, length);
    const bytes = new Uint8Array(new ArrayBuffer(length));
    const held = this.peek(position, length);
    if (held) bytes.set(held);
    else if (length <= WINDOW_BYTES_MIN / 2) bytes.set(await this.read(position, length));
    else await this.#fill(bytes, position);
    return bytes;
  }

  close(): Promise<void> {
    return this.#handle.close();
  }

  #needs(position: number, length: number): void {
    if (position < 0 || position + length > this.fileBytes) {
      throw cutFile(
        this.path,
        `expected ${length} bytes at byte ${position}, but the file has ${this.fileBytes}`,
      );
    }
  }

  async #fill(into: Uint8Array, position: number): Promise<void> {
    const { path } = this;
    const cut = (endByte: number) => cutFile(path, `ends at byte ${endByte} while it was being read`);
    await readExactly(this.#handle, into, { startByte: position, path, cut });
  }
}

export function sourceFile(path: string, stats: Stats): SourceFile {
  return { path, bytes: stats.size, mtimeMs: stats.mtimeMs, inode: stats.ino };
}

export function cutFile(path: string, message: string, cause?: unknown) {
  return badDataset(path, message, {
    hint: "the file was cut or damaged: copy or save the dataset again",
    exit: EXIT.integrity,
    cause,
  });
}

export function cannotRead(path: string, cause: unknown) {
  const code = errnoOf(cause);
  const message =
    code === "ENOENT"
      ? "no such file"
      : code === "EACCES"
        ? "permission to read it is missing"
        : "it cannot be read";
  return badDataset(path, message, {
    hint: "check --dataset and the file's mode, or copy the dataset again",
    cause,
  });
}
