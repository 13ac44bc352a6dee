import type { RopeScaling } from "../../model/config.ts";

/** cos and sin of the rotary embedding, [positions, headDim / 2], f32, row-major. */
export interface RopeTables {
  positions: number;
  cos: Float32Array;
  sin: Float32Array;
}

/**
 * The tables for positions 0..positions-1. Rounded to f32 where transformers' `compute_default_rope_parameters`
 * rounds, because at position 100,000 a frequency in f64 would give other angles than the model has seen.
 */
export function ropeTables(options: {
  headDim: number;
  theta: number;
  scaling: RopeScaling;
  positions: number;
}): RopeTables {
  const half = options.headDim / 2;
  const frequencies = ropeFrequencies(options);
  const cos = new Float32Array(options.positions * half);
  const sin = new Float32Array(options.positions * half);
  for (let position = 0; position < options.positions; position += 1) {
    for (let j = 0; j < half; j += 1) {
      const angle = Math.fround(position * frequencies[j]!);
      cos[position * half + j] = Math.cos(angle);
      sin[position * half + j] = Math.sin(angle);
    }
  }
  return { positions: options.positions, cos, sin };
}

/** [headDim / 2] radians a position. Sources: transformers `modeling_rope_utils.py`, linear and llama3. */
export function ropeFrequencies(options: {
  headDim: number;
  theta: number;
  scaling: RopeScaling;
}): Float32Array {
  const { headDim, theta, scaling } = options;
  const plain = Float32Array.from(
    { length: headDim / 2 },
    (_, j) => 1 / Math.fround(theta ** Math.fround((2 * j) / headDim)),
  );
  switch (scaling.kind) {
    case "none":
      return plain;
    case "linear":
      return plain.map((frequency) => frequency / scaling.factor);
    case "llama3":
      return plain.map((frequency) => stretchLlama3(frequency, scaling));
    case "other":
      throw new Error(`rope scaling "${scaling.name}" should have been refused`);
  }
}

/** Slow frequencies are stretched by the whole factor, fast ones kept, those between blended. */
function stretchLlama3(frequency: number, scaling: Extract<RopeScaling, { kind: "llama3" }>): number {
  const wavelength = (2 * Math.PI) / frequency;
  const { factor, lowFreqFactor, highFreqFactor, originalPositions } = scaling;
  if (wavelength > originalPositions / lowFreqFactor) return frequency / factor;
  if (wavelength < originalPositions / highFreqFactor) return frequency;
  const smooth = (originalPositions / wavelength - lowFreqFactor) / (highFreqFactor - lowFreqFactor);
  return ((1 - smooth) * frequency) / factor + smooth * frequency;
}
