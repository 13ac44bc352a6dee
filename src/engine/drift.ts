import type { StatesShape } from "./check-states.ts";
import type { SampleStates } from "./protocol.ts";

/** What a pack's states may be that no single sample shows. */
export interface DriftEvent {
  kind: "jump" | "constant" | "repeated";
  /** Position in the run's taps, or null where it is not one tap's matter. */
  tap: number | null;
  rows: number[];
  /** One sentence with the numbers. */
  message: string;
}

export interface DriftLimits {
  /** Packs before jumps are looked for. */
  warmUpPacks: number;
  /** How many typical deviations (1.4826 x the median absolute deviation) from the median are a jump. */
  deviations: number;
  /**
   * And how many times the median, or what part of it, RMS and absmax must be; a mean must be off by the RMS.
   * Packs of short samples have more first tokens, whose states are large, and are no fault: so it is generous.
   */
  factor: number;
}

export const DEFAULT_DRIFT_LIMITS: DriftLimits = { warmUpPacks: 16, deviations: 12, factor: 8 };

const PACKS_HELD = 256;
const STATES_HELD = 4_096;
/** Below this many tokens two different samples with the same beginning may well have equal states. */
const REPEAT_TOKENS_MIN = 4;

type Measure = "mean" | "rms" | "absmax";
const MEASURES: readonly Measure[] = ["mean", "rms", "absmax"];

/**
 * Holds each pack's per-tap mean, RMS and absmax against those of the last 256 packs by median and median
 * absolute deviation, which a few bad packs do not move. A pack that jumped is not learned from.
 * One watch serves the whole run: what one engine does differently from the others is what it is there to find.
 */
export class DriftWatch {
  readonly #limits: DriftLimits;
  /** [tap][measure]: values of past packs, oldest first. */
  readonly #past: Record<Measure, number[]>[];
  /** crc32c of states -> the ids they came from, and the row. */
  readonly #seen = new Map<string, { row: number; idsCrc32c: number }>();

  constructor(shape: StatesShape, limits: DriftLimits = DEFAULT_DRIFT_LIMITS) {
    this.#limits = limits;
    this.#past = Array.from({ length: shape.taps }, () => ({ mean: [], rms: [], absmax: [] }));
  }

  /** Looks at the samples of one pack (all accepted by refusedRows) and returns what is odd about them. */
  look(samples: readonly SampleStates[]): DriftEvent[] {
    if (samples.length === 0) return [];
    const events = this.#repeated(samples);
    const jumps: DriftEvent[] = [];
    const packs = this.#past.map((_, tap) => packStats(samples, tap));
    packs.forEach((pack, tap) => {
      if (pack.rms <= Math.abs(pack.mean) * (1 + 1e-6)) {
        const message = `tap number ${tap}: all states of the pack are near ${pack.mean.toPrecision(4)}`;
        events.push({ kind: "constant", tap, rows: rowsOf(samples), message });
        return;
      }
      const jump = this.#jump(pack, tap);
      if (jump) jumps.push({ kind: "jump", tap, rows: rowsOf(samples), message: jump });
    });
    if (jumps.length === 0 && events.length === 0) this.#learn(packs);
    return [...events, ...jumps];
  }

  #jump(pack: Record<Measure, number>, tap: number): string | null {
    const { warmUpPacks, deviations, factor } = this.#limits;
    const past = this.#past[tap]!;
    if (past.rms.length < warmUpPacks) return null;
    for (const measure of MEASURES) {
      const found = pack[measure];
      const typical = median(past[measure]);
      const deviation = 1.4826 * median(past[measure].map((value) => Math.abs(value - typical)));
      const isFar =
        measure === "mean"
          ? Math.abs(found - typical) > median(past.rms)
          : found > factor * typical || found < typical / factor;
      if (isFar && Math.abs(found - typical) > deviations * deviation) {
        const numbers = `${found.toPrecision(4)}, in the run so far ${typical.toPrecision(4)}`;
        return `tap number ${tap}: ${measure} of the pack is ${numbers} (typical deviation ${deviation.toPrecision(2)})`;
      }
    }
    return null;
  }

  #learn(packs: readonly Record<Measure, number>[]): void {
    packs.forEach((pack, tap) => {
      for (const measure of MEASURES) {
        const past = this.#past[tap]![measure];
        past.push(pack[measure]);
        if (past.length > PACKS_HELD) past.shift();
      }
    });
  }

  /** The same bytes for different ids: a buffer that was not filled anew. */
  #repeated(samples: readonly SampleStates[]): DriftEvent[] {
    return samples.flatMap(({ row, tokens, bytes, crc32c, ids_crc32c }) => {
      if (tokens < REPEAT_TOKENS_MIN) return [];
      const key = `${crc32c}/${bytes}`;
      const before = this.#seen.get(key);
      if (!before) {
        this.#seen.set(key, { row, idsCrc32c: ids_crc32c });
        if (this.#seen.size > STATES_HELD) this.#seen.delete(this.#seen.keys().next().value!);
        return [];
      }
      if (before.idsCrc32c === ids_crc32c) return [];
      const message = `row ${row} has the very states of row ${before.row}, whose token ids are others`;
      return [{ kind: "repeated" as const, tap: null, rows: [before.row, row], message }];
    });
  }
}

/** Over all tokens of the pack: means weighted by tokens, RMS from the squares, the largest absmax. */
function packStats(samples: readonly SampleStates[], tap: number): Record<Measure, number> {
  let [tokens, sum, squares, absmax] = [0, 0, 0, 0];
  for (const sample of samples) {
    const stats = sample.stats[tap]!;
    tokens += sample.tokens;
    sum += sample.tokens * stats.mean!;
    squares += sample.tokens * stats.rms! ** 2;
    absmax = Math.max(absmax, stats.absmax!);
  }
  return { mean: sum / tokens, rms: Math.sqrt(squares / tokens), absmax };
}

function rowsOf(samples: readonly SampleStates[]): number[] {
  return samples.map(({ row }) => row);
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!;
}
