/**
 * Cuts a byte stream into lines without their newline, holding at most one of `bytesMax` bytes.
 * `push` returns false from the moment a line is longer; what follows is dropped.
 */
export class LineReader {
  readonly #bytesMax: number;
  readonly #onLine: (line: string) => void;
  #held: Buffer[] = [];
  #heldBytes = 0;
  #overflown = false;

  constructor(bytesMax: number, onLine: (line: string) => void) {
    this.#bytesMax = bytesMax;
    this.#onLine = onLine;
  }

  push(chunk: Buffer): boolean {
    let startByte = 0;
    while (!this.#overflown) {
      const newline = chunk.indexOf(0x0a, startByte);
      const piece = chunk.subarray(startByte, newline < 0 ? chunk.length : newline);
      if (this.#heldBytes + piece.length > this.#bytesMax) {
        this.#overflown = true;
        this.#held = [];
        return false;
      }
      if (newline < 0) {
        if (piece.length > 0) this.#held.push(piece);
        this.#heldBytes += piece.length;
        return true;
      }
      const line = this.#held.length === 0 ? piece : Buffer.concat([...this.#held, piece]);
      this.#held = [];
      this.#heldBytes = 0;
      startByte = newline + 1;
      this.#onLine(line.toString("utf8"));
    }
    return false;
  }

  /** Bytes after the last newline: not zero at the end of the stream means that a line was cut. */
  get restBytes(): number {
    return this.#heldBytes;
  }
}
