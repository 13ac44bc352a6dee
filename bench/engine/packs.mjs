/**
 * CPU seconds that a GB of states costs from the blocks' outputs (the connector's file) to a finished pack: into the file,
 * statistics and CRC, ids, masks and header; the engine's process and what it starts, and this one as the supervisor.
 * Nothing is computed: the engines are real, their model (their server) is not. Packs and samples are those of a 27B
 * model with five taps.
 */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { transformersEngineCommand } from "../../dist/engine/transformers.js";
import { vllmEngineCommand } from "../../dist/engine/vllm/command.js";
import { packLayout } from "../../dist/pack/layout.js";
import { metadataBytesOf } from "../../dist/pack/metadata.js";
import { createPart, finishPart } from "../../dist/spool/files.js";
import { ROOT } from "../support/program.mjs";
import { CACHE, cpuSeconds, median, python, short, speakTo, startEngine } from "./parts.mjs";

const TAPS = [1, 16, 31, 46, 61];
const HIDDEN = 5_120;
const BLOCKS = 64;
/** A pack of 64 MiB. */
const LENGTHS = [335, 330, 328, 320];
/** So many packs are outstanding, as in a run. */
const OPEN = 4;
/** A round is half a GB. */
const PACKS_A_ROUND = 8;
const ROUNDS = 9;

const NUMBERING = {
  blocks: TAPS,
  vllm: TAPS.map((tap) => tap + 1),
  hf: TAPS.map((tap) => tap + 1),
  last_state: false,
  last_state_norm: null,
};
const SHAPE = {
  taps: TAPS.length,
  hidden: HIDDEN,
  hasLossMask: true,
  metadataBytes: metadataBytesOf(NUMBERING),
};

export async function packsBench({ python: given }) {
  const sides = [
    await transformersSide(python(given), "bfloat16"),
    await transformersSide(python(given), "float32"),
  ];
  sides.push(await vllmSide());
  // In turn; the first round fills pools, caches and compiled code.
  for (let round = -1; round < ROUNDS; round += 1) {
    // Each goes first as often as another: what the one before leaves to the kernel is paid by the next.
    const turn = (round + sides.length) % sides.length;
    for (const side of [...sides.slice(turn), ...sides.slice(0, turn)]) {
      const cost = await roundOf(side.engine);
      if (round >= 0) side.costs.push(cost);
    }
  }
  for (const side of sides) {
    await side.engine.shutdown();
    side.end();
    console.log(`${side.name.padEnd(44)} ${median(side.costs).toFixed(2)} CPU s/GB`);
  }
  const [bf16, f32, vllm] = sides.map(({ costs }) => short(median(costs)));
  return { pack_cpu_s_per_gb: bf16, pack_cpu_s_per_gb_f32: f32, vllm_pack_cpu_s_per_gb: vllm };
}

/** Its blocks' outputs are in `dtype`: a GPU's are bf16, a CPU computes in f32. */
async function transformersSide(program, dtype) {
  const command = transformersEngineCommand({
    python: program,
    env: { PATH: process.env.PATH },
    packageDirectory: join(ROOT, "bench/engine/null"),
  });
  const options = { threads: 1, hidden: HIDDEN, blocks: BLOCKS, dtype };
  const engine = await startEngine(command, { model: "none", taps: TAPS, options });
  return { name: `transformers engine, outputs in ${dtype}`, engine, costs: [], end: () => {} };
}

async function vllmSide() {
  const folder = mkdtempSync("/dev/shm/forebay-bench-");
  const model = mkdtempSync(join(tmpdir(), "forebay-bench-"));
  writeFileSync(join(model, "config.json"), JSON.stringify(MODEL_CONFIG));
  const arguments_ = [folder, String(TAPS.length), String(HIDDEN), model];
  const server = speakTo(process.execPath, [join(ROOT, "bench/engine/states-server.mjs"), ...arguments_]);
  const { url } = await server.ask({});
  const command = vllmEngineCommand({ target: { url }, env: { PATH: process.env.PATH } });
  const engine = await startEngine(command, { model, taps: TAPS, options: {} });
  const end = () => {
    server.end();
    for (const directory of [folder, model]) rmSync(directory, { recursive: true, force: true });
  };
  return { name: "vllm engine, connector's files in memory", engine, costs: [], end };
}

/** CPU seconds a GB of one round. */
async function roundOf(engine) {
  const directory = join(CACHE, "packs");
  rmSync(directory, { recursive: true, force: true });
  mkdirSync(directory, { recursive: true });
  const before = cpuSeconds(engine.pid);
  const own = process.cpuUsage();
  let bytes = 0;
  for (let first = 0; first < PACKS_A_ROUND; first += OPEN) {
    const packs = Array.from({ length: OPEN }, (_, i) => makePack(engine, first + i, directory));
    for (const size of await Promise.all(packs)) bytes += size;
  }
  const { user, system } = process.cpuUsage(own);
  const seconds = cpuSeconds(engine.pid) - before + (user + system) / 1e6;
  rmSync(directory, { recursive: true, force: true });
  return seconds / (bytes / 1e9);
}

/** As the supervisor does it. Resolves with the pack's bytes. */
async function makePack(engine, index, directory) {
  const layout = packLayout(
    { index, samples: LENGTHS.map((tokens, s) => ({ row: index * LENGTHS.length + s, tokens })) },
    SHAPE,
  );
  const [part, ready] = ["part", "ready"].map((name) => join(directory, `${index}.${name}`));
  createPart({ path: part, bytes: layout.bytes });
  const samples = layout.samples.map(({ row, tokens, statesByte }) => ({
    row,
    ids: Array.from({ length: tokens }, (_, t) => (row * 7_919 + t * 104_729) % MODEL_CONFIG.vocab_size),
    offset: statesByte,
  }));
  const { samples: answers, failed } = await engine.extract({ attempt: 1, file: part, samples });
  if (failed.length > 0) throw new Error(failed[0].message);
  const crcs = new Map(answers.map(({ row, crc32c }) => [row, crc32c]));
  finishPart({
    part,
    ready,
    contents: {
      layout,
      shape: SHAPE,
      facts: { identity: "0".repeat(64), numbering: NUMBERING },
      outcomes: samples.map(({ row, ids }) => ({
        kind: "done",
        ids: Int32Array.from(ids),
        lossMask: new Uint8Array(ids.length).fill(1),
        statesCrc32c: crcs.get(row),
      })),
    },
  });
  return layout.bytes;
}

const MODEL_CONFIG = {
  architectures: ["Qwen3ForCausalLM"],
  model_type: "qwen3",
  num_hidden_layers: BLOCKS,
  hidden_size: HIDDEN,
  num_attention_heads: 40,
  num_key_value_heads: 8,
  head_dim: 128,
  intermediate_size: 17_408,
  vocab_size: 151_936,
  max_position_embeddings: 40_960,
  rms_norm_eps: 1e-6,
  rope_theta: 1_000_000,
  hidden_act: "silu",
  tie_word_embeddings: false,
  torch_dtype: "bfloat16",
};
