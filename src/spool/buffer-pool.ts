import { sharedBytes, sharedIoBuffer } from "../base/io-buffer.ts";

/**
 * Memory for packs in flight, shared with the upload threads and used again and again: a fresh 64 MiB buffer costs
 * several times what filling a used one does. Busy and free buffers together stay within `bytesMax`, except that one
 * pack that is larger than all of it may travel alone.
 */
export class BufferPool {
  #bytesMax: number;
  #busyBytes = 0;
  #free: SharedArrayBuffer[] = [];

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax;
  }

  get busyBytes(): number {
    return this.#busyBytes;
  }

  get bytesMax(): number {
    return this.#bytesMax;
  }

  set bytesMax(bytes: number) {
    this.#bytesMax = bytes;
    this.#trim(0);
  }

  /** A buffer of at least `bytes`, or null while too much is in flight. */
  take(bytes: number): SharedArrayBuffer | null {
    const size = sizeClass(bytes);
    const spare = this.#free.findLast((buffer) => sharedBytes(buffer) === size);
    if (this.#busyBytes > 0 && this.#busyBytes + size > this.#bytesMax) return null;
    if (spare) this.#free.splice(this.#free.indexOf(spare), 1);
    else this.#trim(size);
    this.#busyBytes += size;
    return spare ?? sharedIoBuffer(size);
  }

  give(buffer: SharedArrayBuffer): void {
    this.#busyBytes -= sharedBytes(buffer);
    this.#free.push(buffer);
    this.#trim(0);
  }

  /** Lets go of free buffers until `coming` more bytes fit. */
  #trim(coming: number): void {
    let held = this.#free.reduce((sum, buffer) => sum + sharedBytes(buffer), this.#busyBytes + coming);
    while (held > this.#bytesMax && this.#free.length > 0) held -= sharedBytes(this.#free.shift()!);
  }
}

/** Quarters of a power of two (32, 40, 48, 56, 64 MiB ...): packs of a run are nearly alike and share buffers. */
function sizeClass(bytes: number): number {
  const step = Math.max(2 ** 16, 2 ** (Math.floor(Math.log2(Math.max(bytes, 1))) - 2));
  return Math.ceil(bytes / step) * step;
}
