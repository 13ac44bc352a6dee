import { open } from "node:fs/promises";
import { readUpTo } from "../base/read-exactly.ts";
import type { StatesShape } from "./check-states.ts";
import type { ExtractSample } from "./protocol.ts";

export interface CanaryOptions {
  /** One sample of every so many batches of an engine is computed again. */
  everyBatches: number;
  /** Largest relative error (L2, median over tokens) between two computations of the same sample in one engine. */
  tolerance: number;
  /** So many mismatches in a row, and the engine is stopped. */
  strikesMax: number;
}

/** bf16 in different company is off by 0.04 at most; states of another sample by 1 and more. */
export const DEFAULT_CANARY: CanaryOptions = { everyBatches: 64, tolerance: 0.1, strikesMax: 2 };

/** A longer one costs more than it tells. */
const TOKENS_MAX = 1_024;
/** A shorter one may be like another by chance. */
const TOKENS_MIN = 4;

/** The sample of a batch to compute again: the shortest that tells anything; null where there is none. */
export function chooseCanary(samples: readonly ExtractSample[]): ExtractSample | null {
  const able = samples.filter(({ ids }) => ids.length >= TOKENS_MIN && ids.length <= TOKENS_MAX);
  return able.reduce<ExtractSample | null>(
    (best, sample) => (best && best.ids.length <= sample.ids.length ? best : sample),
    null,
  );
}

/** Reads the states of one sample: bf16 [tokens, taps, hidden] as bytes; fewer where the file ends. */
export async function readStatesBytes(file: string, offset: number, bytes: number): Promise<Buffer> {
  const handle = await open(file, "r");
  try {
    const buffer = Buffer.alloc(bytes);
    return buffer.subarray(0, await readUpTo(handle, buffer, offset));
  } finally {
    await handle.close();
  }
}

/**
 * |again - stored| / |stored| of each token over all its taps (L2), the median over tokens: an expert that flips in
 * a single token is the model's nature, another sample is not. NaN (refused by whoever compares) for other lengths.
 */
export function relativeError(stored: Buffer, again: Buffer, { taps, hidden }: StatesShape): number {
  const tokenBytes = taps * hidden * 2;
  if (stored.length !== again.length || stored.length === 0) return Number.NaN;
  const errors: number[] = [];
  for (let at = 0; at < stored.length; at += tokenBytes) {
    let [difference, norm] = [0, 0];
    for (let byte = at; byte < at + tokenBytes; byte += 2) {
      const a = fromBf16(stored.readUInt16LE(byte));
      difference += (fromBf16(again.readUInt16LE(byte)) - a) ** 2;
      norm += a ** 2;
    }
    errors.push(Math.sqrt(difference / norm));
  }
  return errors.sort((a, b) => a - b)[errors.length >> 1]!;
}

const word = new Uint32Array(1);
const float = new Float32Array(word.buffer);

function fromBf16(half: number): number {
  word[0] = half << 16;
  return float[0]!;
}
