import { rename, writeFile } from "node:fs/promises";

/**
 * A file that follows the newest of something: replaced as a whole, one write at a time, and nobody waits for the
 * disk. Not made durable, and a disk that refuses is no reason to end: it is a cache, and the next write tries again.
 */
export class KeptFile {
  readonly #path: string;
  #next: string | Uint8Array | null = null;
  #writing: Promise<void> | null = null;

  constructor(path: string) {
    this.#path = path;
  }

  /** Of several during one write only the last is written. */
  replace(content: string | Uint8Array): void {
    this.#next = content;
    this.#writing ??= this.#write();
  }

  /** Resolves when the last `replace` is written, or was refused. */
  async settled(): Promise<void> {
    await this.#writing;
  }

  async #write(): Promise<void> {
    const temporary = `${this.#path}.tmp`;
    while (this.#next !== null) {
      const content = this.#next;
      this.#next = null;
      try {
        await writeFile(temporary, content, { mode: 0o600 });
        await rename(temporary, this.#path);
      } catch {
        // See above.
      }
    }
    this.#writing = null;
  }
}
