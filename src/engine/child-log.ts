import { closeSync, fstatSync, openSync, renameSync } from "node:fs";
import { plainText } from "../base/log.ts";
import { writeAllSync } from "../base/publish.ts";
import { LineReader } from "./lines.ts";

/** A traceback fits; a child that floods does not grow us. */
const TAIL_LINES = 200;
const TAIL_LINE_CHARS_MAX = 1_000;
const LINE_BYTES_HELD_MAX = 64 * 1024;

/**
 * A child's stderr: all of it in `path` (raw; at most `bytesMax`, then renamed to `path.1`, which is replaced),
 * and the last 200 lines, made harmless, for error reports. A log that cannot be written never stops a run:
 * the first failure is told to `onError` and only the tail is kept from then on.
 */
export class ChildLog {
  readonly #path: string | null;
  readonly #bytesMax: number;
  readonly #onError: (error: unknown) => void;
  readonly #tail: string[] = [];
  #lines: LineReader;
  #fd: number | null = null;
  #bytes = 0;

  constructor(options: { path: string | null; bytesMax: number; onError: (error: unknown) => void }) {
    this.#path = options.path;
    this.#bytesMax = options.bytesMax;
    this.#onError = options.onError;
    this.#lines = this.#newLines();
    this.#attempt(() => this.#open());
  }

  append(chunk: Buffer): void {
    // A line longer than the cap is dropped from the tail (the file has it) and reading starts afresh.
    if (!this.#lines.push(chunk)) this.#lines = this.#newLines();
    this.#attempt(() => {
      if (this.#fd === null) return;
      if (this.#bytes > 0 && this.#bytes + chunk.length > this.#bytesMax) this.#rotate();
      writeAllSync(this.#fd, chunk, null);
      this.#bytes += chunk.length;
    });
  }

  /** The last lines, oldest first. */
  tail(): string[] {
    return [...this.#tail];
  }

  /** Safe to call twice; a last line without its newline still reaches the tail. */
  close(): void {
    if (this.#lines.restBytes > 0) this.#lines.push(Buffer.from("\n"));
    if (this.#fd !== null) closeSync(this.#fd);
    this.#fd = null;
  }

  #newLines(): LineReader {
    return new LineReader(LINE_BYTES_HELD_MAX, (line) => {
      this.#tail.push(plainText(line, TAIL_LINE_CHARS_MAX));
      if (this.#tail.length > TAIL_LINES) this.#tail.shift();
    });
  }

  #open(): void {
    if (this.#path === null) return;
    this.#fd = openSync(this.#path, "a", 0o600);
    this.#bytes = fstatSync(this.#fd).size;
  }

  #rotate(): void {
    this.close();
    renameSync(this.#path!, `${this.#path}.1`);
    this.#open();
  }

  #attempt(action: () => void): void {
    try {
      action();
    } catch (error) {
      this.close();
      this.#onError(error);
    }
  }
}
