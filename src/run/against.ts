import { readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import { refusedRows } from "../engine/check-states.ts";
import type { Engine } from "../engine/engine.ts";
import type { PackShape } from "../pack/layout.ts";
import { type GateSample, placeSamples } from "./gate.ts";

type Shape = Pick<PackShape, "taps" | "hidden">;

/** How far the states of one tap are apart in two engines. */
export interface TapAgreement {
  tap: number;
  ok: boolean;
  /** |b - a| / |a| (L2 over the hidden axis): over all tokens, of the median one, and of the worst. */
  meanError: number;
  medianError: number;
  worstError: number;
  /** Of the median token. */
  medianCosine: number;
}

/**
 * bf16 is up to 4e-2 from itself when the same thing is computed in another order. The median token is judged: a
 * router of experts may send single tokens elsewhere.
 */
const MEDIAN_ERROR_MAX = 0.05;

/** What two engines made of the same samples, tap by tap. */
export function compareStates(
  [a, b]: readonly [Uint16Array, Uint16Array],
  { taps, shape }: { taps: readonly number[]; shape: Shape },
): TapAgreement[] {
  return taps.map((tap, slot) => compareTap(a, b, { tap, slot, shape }));
}

/** One tap of two [tokens, taps, hidden], bf16 bits. */
export function compareTap(
  a: Uint16Array,
  b: Uint16Array,
  { tap, slot, shape }: { tap: number; slot: number; shape: Shape },
): TapAgreement {
  const errors: number[] = [];
  const cosines: number[] = [];
  for (let start = slot * shape.hidden; start < a.length; start += shape.taps * shape.hidden) {
    const x = bf16Numbers(a.subarray(start, start + shape.hidden));
    const y = bf16Numbers(b.subarray(start, start + shape.hidden));
    const [xx, yy, xy] = [dot(x, x), dot(y, y), dot(x, y)];
    const difference = x.map((value, i) => y[i]! - value);
    errors.push(Math.sqrt(dot(difference, difference) / xx));
    cosines.push(xy / Math.sqrt(xx * yy));
  }
  const medianError = median(errors);
  return {
    tap,
    // A NaN is not below anything.
    ok: medianError <= MEDIAN_ERROR_MAX,
    meanError: errors.reduce((sum, error) => sum + error, 0) / errors.length,
    medianError,
    worstError: errors.reduce((worst, error) => Math.max(worst, error), 0),
    medianCosine: median(cosines),
  };
}

/** One line a tap, for a person. */
export function describeAgreement(agreement: readonly TapAgreement[]): string {
  return agreement
    .map(({ tap, ok, medianError, worstError, medianCosine }) => {
      const errors = `median error ${medianError.toExponential(1)} (limit ${MEDIAN_ERROR_MAX}), worst ${worstError.toExponential(1)}`;
      return `block ${tap}: ${ok ? "ok" : "FAILED"} ${errors}, cosine ${medianCosine.toFixed(6)}`;
    })
    .join("\n");
}

/** The samples' states, bf16 bits [tokens, taps, hidden]. Uses a scratch file in `directory`. */
export async function statesOf(
  engine: Engine,
  samples: readonly GateSample[],
  { shape, directory }: { shape: Shape; directory: string },
): Promise<Uint16Array> {
  const file = join(directory, `against-${engine.label}.bin`);
  const placed = placeSamples(samples, shape);
  writeFileSync(file, "", { mode: 0o600 });
  try {
    truncateSync(file, placed.bytes);
    const answer = await engine.extract({ attempt: 1, file, samples: placed.samples });
    const bad = answer.failed[0]?.message ?? refusedRows(placed.samples, answer.samples, shape)[0]?.reason;
    if (bad !== undefined) {
      throw new RunError({
        op: "compare engines",
        subject: engine.label,
        message: `it could not do a sample: ${bad}`,
        safe: "nothing was stored",
        hint: "forebay check without --against says more about this engine",
        exit: EXIT.integrity,
      });
    }
    return new Uint16Array(Uint8Array.from(readFileSync(file)).buffer);
  } finally {
    rmSync(file, { force: true });
  }
}

function bf16Numbers(bits: Uint16Array): Float32Array {
  return new Float32Array(Uint32Array.from(bits, (pattern) => pattern * 0x10000).buffer);
}

function dot(x: Float32Array, y: Float32Array): number {
  return x.reduce((sum, value, i) => sum + value * y[i]!, 0);
}

function median(values: readonly number[]): number {
  return values.some(Number.isNaN) ? Number.NaN : [...values].sort((x, y) => x - y)[values.length >> 1]!;
}
