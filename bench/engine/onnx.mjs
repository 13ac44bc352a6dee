/**
 * The onnx engine, through its protocol and into a file, against Hugging Face transformers in float32 on this CPU, and
 * against the rate of a bare float32 matrix product.
 */
import { rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { onnxEngineCommand } from "../../dist/engine/onnx/command.js";
import { ROOT } from "../support/program.mjs";
import {
  batchesOf,
  CACHE,
  extractAll,
  MODEL,
  python,
  requestsOf,
  short,
  speakTo,
  startEngine,
} from "./parts.mjs";
import { flopsPerToken, makeRandomLlama, SHAPE } from "./random-llama.mjs";

/** DFlash's five taps for 30 blocks, and the last block: both sides compute every block. */
const TAPS = [1, 8, 14, 20, 27, 29];
/** Samples x tokens: batches of like length, as a plan makes them, about a forward each. */
const BATCHES = [
  [6, 340],
  [16, 128],
  [4, 512],
];
/** Rows, columns and depth of the model's own products over a batch, and a square one. */
const GEMMS = [
  [2_048, SHAPE.intermediate, SHAPE.hidden],
  [2_048, SHAPE.hidden, SHAPE.intermediate],
  [2_048, SHAPE.hidden, SHAPE.hidden],
  [2_048, 2_048, 2_048],
];

export async function onnxBench({ threads, rounds, batches: count, python: given }) {
  makeRandomLlama(MODEL);
  const shapes = BATCHES.slice(0, count ?? BATCHES.length);
  const lengths = shapes.map(([samples, tokens]) => Array(samples).fill(tokens));
  const batches = batchesOf(lengths, SHAPE.vocab);
  const tokens = lengths.flat().reduce((sum, length) => sum + length, 0);
  const gflop = lengths.flat().reduce((sum, n) => sum + n * flopsPerToken(n), 0) / 1e9;

  const transformers = speakTo(python(given), [join(ROOT, "bench/engine/transformers_fp32.py")]);
  const { versions } = await transformers.ask({ model: MODEL, threads, taps: TAPS, batches, gemms: GEMMS });
  const gemm = speakTo(process.execPath, [join(ROOT, "bench/engine/gemm.mjs"), String(threads)]);
  const command = onnxEngineCommand({ env: { PATH: process.env.PATH } });
  const engine = await startEngine(command, { model: MODEL, taps: TAPS, options: { threads } });
  const file = join(CACHE, "states.part");
  const { requests, bytes } = requestsOf(batches, { file, taps: TAPS, hidden: SHAPE.hidden });
  writeFileSync(file, Buffer.alloc(bytes));

  // In turn, so that what else the machine does meets all of them; the best round of each counts.
  const best = { gemm: 0, engine: 0, transformers: 0, all: 0 };
  await extractAll(engine, requests);
  for (let round = 0; round < rounds; round += 1) {
    const { gflops } = await gemm.ask(GEMMS);
    const engineS = await extractAll(engine, requests);
    const other = await transformers.ask({});
    best.gemm = Math.max(best.gemm, gflops, other.gemm);
    best.engine = Math.max(best.engine, tokens / engineS);
    best.transformers = Math.max(best.transformers, tokens / other.taps_s);
    best.all = Math.max(best.all, tokens / other.all_s);
  }
  await engine.shutdown();
  transformers.end();
  gemm.end();
  rmSync(file, { force: true });

  const rate = (tokensPerS) =>
    `${tokensPerS.toFixed(0).padStart(6)} tokens/s ${((tokensPerS * gflop) / tokens).toFixed(0).padStart(5)} GFLOP/s`;
  console.log(`${tokens} tokens in ${shapes.length} batches a round`);
  console.log(`onnx engine (through the protocol, states written)  ${rate(best.engine)}`);
  console.log(`transformers f32, torch ${versions.torch}, hooks at the taps  ${rate(best.transformers)}`);
  console.log(`transformers f32, output_hidden_states (head too)  ${rate(best.all)}`);
  console.log(`f32 matrix product, the best found                 ${best.gemm.toFixed(0)} GFLOP/s`);
  return {
    vs_transformers_fp32: short(best.engine / best.transformers),
    vs_transformers_all_states: short(best.engine / best.all),
    of_gemm_peak: short((best.engine * gflop) / tokens / best.gemm),
    tokens_per_s: Math.round(best.engine),
  };
}
