import type { TapStats } from "../protocol.ts";
import { BF16_FLOATS } from "./bf16.ts";
import { type AddRows, rowStatistics, STATE_BYTES, STEP_BYTES } from "./row-statistics.ts";

const STEP_VALUES = STEP_BYTES / 2;

/**
 * Statistics of bf16 states [tokens, taps, hidden], which come piece by piece, in whole tokens, in a memory of its own:
 * the loop over it reaches no other. Used for one sample after another, since the memory is not given back.
 */
export class StatesStats {
  readonly #addRows: AddRows;
  readonly #memory: ArrayBuffer;
  readonly #piece: Uint16Array;
  #taps = 0;
  #hidden = 0;
  #tokens = 0;
  #state = new DataView(new ArrayBuffer(0));
  #firsts = new Uint16Array();

  /** `pieceBytes` is the most that comes at once, `tapsMax` the most taps of a sample. */
  constructor(pieceBytes: number, tapsMax: number) {
    const { memory, addRows } = rowStatistics(tapsMax * STATE_BYTES + pieceBytes);
    this.#addRows = addRows;
    this.#memory = memory;
    this.#piece = new Uint16Array(memory, tapsMax * STATE_BYTES, pieceBytes / 2);
  }

  /** The most numbers of a piece. */
  get pieceValues(): number {
    return this.#piece.length;
  }

  /** Where a piece of `values` bf16 numbers is to be put, before it is added. */
  piece(values: number): Uint16Array {
    return this.#piece.subarray(0, values);
  }

  /** Begins a sample. */
  begin(taps: number, hidden: number): void {
    this.#taps = taps;
    this.#hidden = hidden;
    this.#tokens = 0;
    this.#firsts = new Uint16Array(taps);
    this.#state = new DataView(this.#memory, 0, taps * STATE_BYTES);
    new Uint8Array(this.#memory, 0, taps * STATE_BYTES).fill(0);
  }

  /** The piece's first `tokens` tokens. */
  add(tokens: number): void {
    const hidden = this.#hidden;
    const strideValues = this.#taps * hidden;
    if (this.#tokens === 0) this.#firsts = this.#firsts.map((_, tap) => this.#piece[tap * hidden]!);
    const steps = Math.floor(hidden / STEP_VALUES);
    for (let tap = 0; tap < this.#taps; tap += 1) {
      const at = this.#piece.byteOffset + tap * hidden * 2;
      const state = tap * STATE_BYTES;
      if (steps > 0) this.#addRows(at, tokens, strideValues * 2, steps, state, this.#firsts[tap]!);
      for (let i = steps * STEP_VALUES; i < hidden; i += 1) {
        for (let token = 0; token < tokens; token += 1)
          this.#addOne(tap, this.#piece[token * strideValues + tap * hidden + i]!);
      }
    }
    this.#tokens += tokens;
  }

  result(): { stats: TapStats[]; finite: boolean; constant: boolean } {
    const count = this.#tokens * this.#hidden;
    const taps = Array.from(this.#firsts, (_, tap) => {
      const state = tap * STATE_BYTES;
      const f64 = (at: number) => this.#state.getFloat64(state + at, true);
      const u16 = (at: number) => new Uint16Array(this.#memory, state + at, STEP_VALUES);
      return {
        mean: finiteOrNull((f64(0) + f64(8)) / count),
        rms: finiteOrNull(Math.sqrt((f64(16) + f64(24)) / count)),
        absmax: finiteOrNull(BF16_FLOATS[Math.max(...u16(32))]!),
        constant: u16(48).every((bits) => bits === 0),
      };
    });
    return {
      stats: taps.map(({ mean, rms, absmax }) => ({ mean, rms, absmax })),
      finite: taps.every(({ absmax }) => absmax !== null),
      constant: taps.some(({ constant }) => constant),
    };
  }

  /** Of the few that are left over where hidden is no multiple of eight. */
  #addOne(tap: number, bits: number): void {
    const state = tap * STATE_BYTES;
    const value = BF16_FLOATS[bits]!;
    this.#state.setFloat64(state, this.#state.getFloat64(state, true) + value, true);
    this.#state.setFloat64(state + 16, this.#state.getFloat64(state + 16, true) + value * value, true);
    const largest = Math.max(this.#state.getUint16(state + 32, true), bits & 0x7fff);
    this.#state.setUint16(state + 32, largest, true);
    const differing = this.#state.getUint16(state + 48, true) | (bits ^ this.#firsts[tap]!);
    this.#state.setUint16(state + 48, differing, true);
  }
}

function finiteOrNull(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}
