/**
 * The transformers engine, through its protocol and into pack files, against the loop that people write by hand: the
 * same batches through the model, and one safetensors file a sample. And what the protocol itself costs: the same
 * requests to the same process with a model that computes nothing.
 */
import { closeSync, ftruncateSync, openSync, rmSync } from "node:fs";
import { join } from "node:path";
import { transformersEngineCommand } from "../../dist/engine/transformers.js";
import { ROOT } from "../support/program.mjs";
import {
  batchesOf,
  CACHE,
  extractAll,
  MODEL,
  median,
  python,
  requestsOf,
  short,
  speakTo,
  startEngine,
} from "./parts.mjs";
import { makeRandomLlama, SHAPE } from "./random-llama.mjs";

/** DFlash's five taps for 30 blocks. */
const TAPS = [1, 8, 14, 20, 27];
/** Batches of like length, as a plan makes them. */
const LENGTHS = [
  [340, 338, 335, 331, 329, 326],
  [130, 129, 129, 128, 128, 127, 127, 126, 126, 125, 125, 124],
];
/** A round of these takes milliseconds. */
const NULL_ROUNDS = 15;

export async function transformersBench({ threads, rounds, python: given }) {
  makeRandomLlama(MODEL);
  const batches = batchesOf(LENGTHS, SHAPE.vocab);
  const samples = LENGTHS.flat().length;
  const env = { PATH: process.env.PATH };
  const file = join(CACHE, "transformers.part");
  const { requests, bytes } = requestsOf(batches, { file, taps: TAPS, hidden: SHAPE.hidden });

  const loop = speakTo(python(given), [join(ROOT, "bench/engine/plain_loop.py")]);
  const out = join(CACHE, "plain-loop");
  await loop.ask({ model: MODEL, threads, taps: TAPS, batches, out });
  const command = transformersEngineCommand({ python: python(given), env });
  const engine = await startEngine(command, { model: MODEL, taps: TAPS, options: { threads } });
  // Both sides once before anything counts; then in turn, so that what else the machine does meets both.
  const seconds = { engine: [], loop: [] };
  for (let round = -1; round < rounds; round += 1) {
    freshFile(file, bytes);
    const engineS = await extractAll(engine, requests);
    const { seconds: loopS } = await loop.ask({});
    if (round < 0) continue;
    console.log(`round ${round + 1}: engine ${engineS.toFixed(2)} s, plain loop ${loopS.toFixed(2)} s`);
    seconds.engine.push(engineS);
    seconds.loop.push(loopS);
  }
  await engine.shutdown();
  loop.end();

  const protocolS = await protocolSeconds({ threads, python: python(given), env, batches, file });
  rmSync(file, { force: true });
  rmSync(out, { recursive: true, force: true });
  const [engineS, loopS] = [median(seconds.engine), median(seconds.loop)];
  const tokens = LENGTHS.flat().reduce((sum, length) => sum + length, 0);
  console.log(`${samples} samples, ${tokens} tokens in ${LENGTHS.length} batches a round`);
  console.log(`transformers engine                          ${(samples / engineS).toFixed(2)} samples/s`);
  console.log(`plain loop, one safetensors file a sample    ${(samples / loopS).toFixed(2)} samples/s`);
  console.log(
    `protocol alone                               ${((1e6 * protocolS) / tokens).toFixed(2)} us a token`,
  );
  return {
    vs_plain_loop: short(loopS / engineS),
    protocol_cost: short(protocolS / engineS),
    protocol_us_per_token: short((1e6 * protocolS) / tokens),
  };
}

/** Of the same batches through the same process without a model, and with next to no states. */
async function protocolSeconds({ threads, python: program, env, batches, file }) {
  const command = transformersEngineCommand({
    python: program,
    env,
    packageDirectory: join(ROOT, "bench/engine/null"),
  });
  const [taps, hidden] = [[0], 8];
  const options = { threads, hidden, blocks: 1, dtype: "float32" };
  const engine = await startEngine(command, { model: MODEL, taps, options });
  const { requests, bytes } = requestsOf(batches, { file, taps, hidden });
  freshFile(file, bytes);
  await extractAll(engine, requests);
  const rounds = [];
  for (let round = 0; round < NULL_ROUNDS; round += 1) rounds.push(await extractAll(engine, requests));
  await engine.shutdown();
  return median(rounds);
}

/** As the supervisor makes a part: its whole size, and nothing in it. */
function freshFile(file, bytes) {
  rmSync(file, { force: true });
  const fd = openSync(file, "w");
  ftruncateSync(fd, bytes);
  closeSync(fd);
}
