import { closeSync, openSync } from "node:fs";
import { readExactlySync } from "../../base/read-exactly.ts";
import type { ModelConfig } from "../../model/config.ts";
import { type ModelWeights, needTensor, openWeights, type WeightTensor } from "../../model/weights.ts";
import type { CheckRequest, CheckResult, ExtractSample } from "../protocol.ts";
import { BF16_FLOATS, bf16OfFloat16 } from "./bf16.ts";
import { refused } from "./failure.ts";

/**
 * The one check that a server allows: out of the last block's STORED state our own norm and output head must choose
 * the token that the server goes on with. States after the final norm, of another block or of another sample do not.
 */

export interface GreedyOptions {
  directory: string;
  model: ModelConfig;
  taps: readonly number[];
  request: CheckRequest;
  /** What the server goes on with. */
  nextToken: (ids: readonly number[]) => Promise<number | null>;
  onProgress: (done: number, total: number) => void;
}

/** vLLM rounds the normed state and each logit to bf16 (2^-9 of it each); four times that. */
const TIE_SHARE = 2 ** -6;
const CHUNK_BYTES = 8 * 2 ** 20;

/** Whether the last block is tapped, and norm and head are ones that we know to compute. */
export function canCheckGreedy(model: ModelConfig, taps: readonly number[], directory: string): boolean {
  if (!model.decoder || model.quantization !== null || taps.at(-1) !== model.blocks - 1) return false;
  try {
    headTensors(openWeights(directory), model);
    return true;
  } catch {
    // Without weights here (the server may have its own) there is nothing to compute with.
    return false;
  }
}

export async function checkGreedy(options: GreedyOptions): Promise<CheckResult> {
  const { directory, model, taps, request } = options;
  const { samples } = request;
  const { norm, head } = headTensors(openWeights(directory), model);
  const scale = readFloats(norm, 0, model.hidden);
  const states = samples.map((sample) => normed(readLastState(request.file, sample, options), scale, model));
  const chosen: (number | null)[] = [];
  for (const { ids } of samples) {
    chosen.push(await options.nextToken(ids));
    options.onProgress(chosen.length, samples.length + 1);
  }
  const logits = await logitsOf(states, head, model);
  options.onProgress(samples.length + 1, samples.length + 1);
  let worst = { over: Number.NEGATIVE_INFINITY, margin: 0, limit: 0, row: 0 };
  let equal = 0;
  samples.forEach(({ row }, s) => {
    const token = chosen[s] ?? null;
    if (token === null) throw refused("the server did not tell which token it goes on with");
    const mine = logits[s]!;
    const margin = mine.reduce((largest, x) => Math.max(largest, x)) - mine[token]!;
    const limit = TIE_SHARE * mine.reduce((largest, x) => Math.max(largest, Math.abs(x)));
    if (margin === 0) equal += 1;
    const over = Number.isNaN(margin - limit) ? Number.POSITIVE_INFINITY : margin - limit;
    if (over > worst.over) worst = { over, margin, limit, row };
  });
  const ok = worst.over <= 0;
  const tap = taps.at(-1)!;
  return {
    kind: "greedy",
    ok,
    tap: ok ? null : tap,
    measured: Number.isFinite(worst.margin) ? worst.margin : null,
    limit: Number.isFinite(worst.limit) ? worst.limit : null,
    control: null,
    message: ok
      ? `${equal} of ${samples.length} samples choose the server's own token, the others tie within rounding`
      : `row ${worst.row}: the stored state of block ${tap} chooses a token ${worst.margin} above the server's own`,
  };
}

function headTensors(weights: ModelWeights, model: ModelConfig): { norm: WeightTensor; head: WeightTensor } {
  const head = model.tied ? "model.embed_tokens.weight" : "lm_head.weight";
  return {
    norm: needTensor(weights, "model.norm.weight", [model.hidden]),
    head: needTensor(weights, head, [model.vocab, model.hidden]),
  };
}

/** The last token's state of the last tap, as stored: bf16 [hidden]. */
function readLastState(file: string, { ids, offset }: ExtractSample, options: GreedyOptions): Float32Array {
  const { model, taps } = options;
  const fd = openSync(file, "r");
  try {
    const rowBytes = model.hidden * 2;
    const states = new Uint16Array(model.hidden);
    readFully(fd, new Uint8Array(states.buffer), offset + (ids.length * taps.length - 1) * rowBytes, file);
    return Float32Array.from(states, (bits) => BF16_FLOATS[bits]!);
  } finally {
    closeSync(fd);
  }
}

/** RMS norm. Source: transformers, Qwen3RMSNorm and LlamaRMSNorm. */
function normed(state: Float32Array, scale: Float32Array, { decoder }: ModelConfig): Float32Array {
  const mean = state.reduce((sum, x) => sum + x * x, 0) / state.length;
  const factor = 1 / Math.sqrt(mean + decoder!.rmsNormEps);
  return state.map((x, i) => x * factor * scale[i]!);
}

/** [vocab] for each state. Reads the head in pieces, and lets the protocol speak between them. */
async function logitsOf(
  states: Float32Array[],
  head: WeightTensor,
  model: ModelConfig,
): Promise<Float32Array[]> {
  const { hidden, vocab } = model;
  const logits = states.map(() => new Float32Array(vocab));
  const chunkRows = Math.max(1, Math.floor(CHUNK_BYTES / (hidden * 4)));
  for (let row = 0; row < vocab; row += chunkRows) {
    const rows = Math.min(chunkRows, vocab - row);
    const weights = readFloats(head, row * hidden, rows * hidden);
    states.forEach((state, s) => {
      for (let r = 0; r < rows; r += 1) {
        let sum = 0;
        for (let i = 0, at = r * hidden; i < hidden; i += 1, at += 1) sum += state[i]! * weights[at]!;
        logits[s]![row + r] = sum;
      }
    });
    await new Promise((resolve) => setImmediate(resolve));
  }
  return logits;
}

/** Values [start, start + count) of a tensor in BF16, F16 or F32, whatever its shape. */
function readFloats(tensor: WeightTensor, start: number, count: number): Float32Array {
  const { dtype, file, startByte } = tensor;
  if (!["BF16", "F16", "F32"].includes(dtype)) throw refused(`${file}: ${tensor.name} is in ${dtype}`);
  const valueBytes = dtype === "F32" ? 4 : 2;
  const bytes = new Uint8Array(count * valueBytes);
  const fd = openSync(file, "r");
  try {
    readFully(fd, bytes, startByte + start * valueBytes, file);
  } finally {
    closeSync(fd);
  }
  if (dtype === "F32") return new Float32Array(bytes.buffer);
  const halves = new Uint16Array(bytes.buffer);
  if (dtype === "F16") bf16OfFloat16(halves, halves);
  return Float32Array.from(halves, (bits) => BF16_FLOATS[bits]!);
}

function readFully(fd: number, into: Uint8Array, startByte: number, file: string): void {
  const cut = (endByte: number) =>
    Object.assign(new Error(`${file} ends at byte ${endByte}`), { code: "EIO" });
  readExactlySync(fd, into, { startByte, path: file, cut });
}
