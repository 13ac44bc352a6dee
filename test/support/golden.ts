import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseHeader } from "../../src/base/safetensors.ts";

export const MODELS = fileURLToPath(new URL("../../fixtures/models", import.meta.url));

/** One sequence of a model's golden.safetensors, as Hugging Face transformers computes it in f32. */
export interface GoldenSequence {
  ids: number[];
  /** The blocks of the slots of `hidden`, ascending. */
  blocks: number[];
  /** [tokens, blocks, hidden], after each block, before any norm. */
  hidden: Float32Array;
  hiddenSize: number;
}

/** fixtures/models/README.md: ten times what rounding gives, far below any mistake. */
export const RELATIVE_ERROR_MAX = 1e-4;

/** All six sequences of a model. */
export function readGolden(model: string): GoldenSequence[] {
  const file = join(MODELS, model, "golden.safetensors");
  return [0, 1, 2, 3, 4, 5].map((k) => readSequence(file, k));
}

export function readSequence(file: string, k: number): GoldenSequence {
  const bytes = readFileSync(file);
  const { tensors } = parseHeader(bytes, file, bytes.length);
  const data = (name: string) => {
    const { startByte, endByte } = tensors.get(name)!;
    return Uint8Array.from(bytes.subarray(startByte, endByte)).buffer;
  };
  const integers = (name: string) => Array.from(new BigInt64Array(data(name)), Number);
  return {
    ids: integers(`s${k}.input_ids`),
    blocks: integers(`s${k}.blocks`),
    hidden: new Float32Array(data(`s${k}.hidden`)),
    hiddenSize: tensors.get(`s${k}.hidden`)!.shape[2]!,
  };
}

/**
 * How far stored bf16 `states` [tokens, taps, hidden] must at least have been from the golden ones before they
 * were rounded: for each number the distance of the golden one from all reals that round to the stored; over each
 * token and block |distance| / |golden| (L2); the largest of these. The states may be of a prefix of the sequence.
 */
export function worstDistance(states: Uint16Array, taps: number[], golden: GoldenSequence): number {
  const { hiddenSize, blocks, hidden } = golden;
  const tokens = states.length / (taps.length * hiddenSize);
  let worst = 0;
  for (let token = 0; token < tokens; token += 1) {
    for (const [slot, block] of blocks.entries()) {
      const tap = taps.indexOf(block);
      if (tap === -1) continue;
      const at = (token * blocks.length + slot) * hiddenSize;
      const row = (token * taps.length + tap) * hiddenSize;
      let norm = 0;
      let distance = 0;
      for (let j = 0; j < hiddenSize; j += 1) {
        norm += hidden[at + j]! ** 2;
        distance += distanceFromBf16(hidden[at + j]!, states[row + j]!) ** 2;
      }
      worst = Math.max(worst, Math.sqrt(distance / norm));
    }
  }
  return worst;
}

const float = new Float32Array(1);
const bits = new Uint32Array(float.buffer);

function distanceFromBf16(value: number, stored: number): number {
  const magnitude = (stored & 0x7fff) * 0x10000;
  const low = floatOf(Math.max(0, magnitude - 0x8000));
  const high = floatOf(magnitude + 0x8000);
  const sign = stored & 0x8000 ? -1 : 1;
  // Around zero the interval reaches over to the other sign.
  const lowest = magnitude === 0 ? -high : low;
  const aligned = value * sign;
  return aligned < lowest
    ? lowest - aligned
    : aligned > high
      ? aligned - high
      : Number.isNaN(high)
        ? Number.NaN
        : 0;
}

function floatOf(pattern: number): number {
  bits[0] = pattern;
  return float[0]!;
}
