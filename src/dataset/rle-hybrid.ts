/**
 * Parquet's hybrid of runs and bit-packed values, resumable: a page of one bit a value may stand for a hundred million
 * values, so it is decoded a slice at a time. Source: parquet-format Encodings.md, "RLE = 3".
 */
export class HybridDecoder {
  readonly #bytes: Uint8Array;
  readonly #end: number;
  readonly #bits: number;
  #at: number;
  /** Values left in the current run, and what they are; packed ones are read from #at. */
  #runLeft = 0;
  #runValue = 0;
  #packedLeft = 0;
  #held = 0;
  #heldBits = 0;

  /** Values of `bits` bits in bytes[start, end). Throws where that is over 24 (dictionaries of 16 million). */
  constructor(bytes: Uint8Array, start: number, end: number, bits: number) {
    if (bits > 24) throw new Error(`a bit width of ${bits} is not supported`);
    if (start > end || end > bytes.length) throw new Error("a run of values lies outside its page");
    this.#bytes = bytes;
    this.#at = start;
    this.#end = end;
    this.#bits = bits;
  }

  /** Fills `into` with the next values; throws where there are too few. */
  fill(into: Uint8Array | Int32Array): void {
    for (let filled = 0; filled < into.length; ) {
      if (this.#runLeft > 0) {
        const count = Math.min(this.#runLeft, into.length - filled);
        into.fill(this.#runValue, filled, filled + count);
        this.#runLeft -= count;
        filled += count;
      } else if (this.#packedLeft > 0) {
        const count = Math.min(this.#packedLeft, into.length - filled);
        this.#unpack(into, filled, filled + count);
        this.#packedLeft -= count;
        filled += count;
      } else {
        this.#nextRun();
      }
    }
  }

  #unpack(into: Uint8Array | Int32Array, start: number, end: number): void {
    const bytes = this.#bytes;
    const bits = this.#bits;
    const mask = (1 << bits) - 1;
    let at = this.#at;
    let held = this.#held;
    let heldBits = this.#heldBits;
    for (let i = start; i < end; i += 1) {
      while (heldBits < bits) {
        // Writers may leave out the unused end of the last group; what is missing reads as 0 and is never wanted.
        held |= (bytes[at] ?? 0) << heldBits;
        at += 1;
        heldBits += 8;
      }
      into[i] = held & mask;
      held >>>= bits;
      heldBits -= bits;
    }
    this.#at = at;
    this.#held = held;
    this.#heldBits = heldBits;
  }

  #nextRun(): void {
    const header = this.#varint();
    if (header % 2 === 1) {
      const groups = Math.floor(header / 2);
      if (groups === 0) throw new Error("an empty run of values");
      const bytesLeft = this.#end - this.#at;
      if ((groups - 1) * this.#bits > bytesLeft) throw new Error("a run of values ends too early");
      this.#packedLeft = groups * 8;
      this.#held = 0;
      this.#heldBits = 0;
      return;
    }
    const valueBytes = (this.#bits + 7) >> 3;
    if (header === 0) throw new Error("an empty run of values");
    if (this.#at + valueBytes > this.#end) throw new Error("a run of values ends too early");
    this.#runLeft = header / 2;
    this.#runValue = 0;
    for (let i = 0; i < valueBytes; i += 1) this.#runValue |= this.#bytes[this.#at + i]! << (8 * i);
    this.#at += valueBytes;
  }

  #varint(): number {
    let value = 0;
    for (let factor = 1; factor < 2 ** 35; factor *= 128) {
      if (this.#at >= this.#end) throw new Error("a run of values ends too early");
      const byte = this.#bytes[this.#at]!;
      this.#at += 1;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) return value;
    }
    throw new Error("a run's length is damaged");
  }
}
