import { crc32c } from "../../base/checksum.ts";
import type { SampleStates, TapStats } from "../protocol.ts";
import type { Forward } from "./session.ts";

/** Rows [startRow, endRow) of a forward, which belong to one sample. */
export interface ForwardRows {
  forward: Forward;
  startRow: number;
  endRow: number;
}

/** Gathers what is answered for one sample, piece by piece where it goes in chunks. */
export class SampleSummary {
  readonly #taps: number;
  readonly #hidden: number;
  readonly #sumMean: Float64Array;
  readonly #sumSquares: Float64Array;
  readonly #min: Float64Array;
  readonly #max: Float64Array;
  #tokens = 0;
  #bytes = 0;
  #crc = 0;
  #idsCrc = 0;

  constructor(taps: number, hidden: number) {
    this.#taps = taps;
    this.#hidden = hidden;
    this.#sumMean = new Float64Array(taps);
    this.#sumSquares = new Float64Array(taps);
    this.#min = new Float64Array(taps).fill(Number.POSITIVE_INFINITY);
    this.#max = new Float64Array(taps).fill(Number.NEGATIVE_INFINITY);
  }

  /** Bytes added so far: where the next piece belongs, counted from the sample's offset. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Adds the next tokens: the ids that ran, and their rows. Returns the bytes to write for them. */
  add(ids: Int32Array, rows: ForwardRows): Uint8Array {
    const { forward, startRow, endRow } = rows;
    const rowValues = this.#taps * this.#hidden;
    const values = forward.states.subarray(startRow * rowValues, endRow * rowValues);
    const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    this.#crc = crc32c(bytes, this.#crc);
    this.#idsCrc = crc32c(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength), this.#idsCrc);
    for (let row = startRow; row < endRow; row += 1) {
      for (let tap = 0; tap < this.#taps; tap += 1) {
        const at = row * this.#taps + tap;
        this.#sumMean[tap]! += forward.mean[at]!;
        this.#sumSquares[tap]! += forward.sumSquares[at]!;
        // A NaN fails both comparisons; the mean shows it.
        if (forward.min[at]! < this.#min[tap]!) this.#min[tap] = forward.min[at]!;
        if (forward.max[at]! > this.#max[tap]!) this.#max[tap] = forward.max[at]!;
      }
    }
    this.#tokens += endRow - startRow;
    this.#bytes += bytes.byteLength;
    return bytes;
  }

  answer(row: number): SampleStates {
    const stats = Array.from({ length: this.#taps }, (_, tap) => this.#tapStats(tap));
    // As stored: two f32 values may be one in bf16, or be infinite there.
    const extremes = Array.from({ length: this.#taps }, (_, tap) => [
      roundToBf16(this.#min[tap]!),
      roundToBf16(this.#max[tap]!),
    ]);
    return {
      row,
      bytes: this.#bytes,
      tokens: this.#tokens,
      ids_crc32c: this.#idsCrc,
      crc32c: this.#crc,
      stats,
      finite: this.#sumMean.every(Number.isFinite) && extremes.flat().every(Number.isFinite),
      constant: extremes.some(([min, max]) => min === max),
    };
  }

  #tapStats(tap: number): TapStats {
    return {
      mean: finiteOrNull(this.#sumMean[tap]! / this.#tokens),
      rms: finiteOrNull(Math.sqrt(this.#sumSquares[tap]! / (this.#tokens * this.#hidden))),
      absmax: finiteOrNull(Math.max(-this.#min[tap]!, this.#max[tap]!)),
    };
  }
}

function finiteOrNull(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

/** To the nearest bf16, ties to even, as the graph's Cast does. */
export function roundToBf16(value: number): number {
  float[0] = value;
  if (!Number.isFinite(value)) return value;
  bits[0] = (bits[0]! + 0x7fff + ((bits[0]! >>> 16) & 1)) & 0xffff0000;
  return float[0]!;
}
