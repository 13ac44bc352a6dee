// The engines: onnx and transformers against what people have, and what a GB of states costs on its way into a pack.
// `npm run bench -- engine [--only onnx,transformers,packs] [--threads N] [--rounds N] [--batches N] [--python PATH]`.
import { availableParallelism, cpus, loadavg } from "node:os";
import { parseArgs } from "node:util";
import { onnxBench } from "./engine/onnx.mjs";
import { packsBench } from "./engine/packs.mjs";
import { transformersBench } from "./engine/transformers.mjs";

const PARTS = { onnx: onnxBench, transformers: transformersBench, packs: packsBench };

const { values: flags } = parseArgs({
  options: {
    only: { type: "string", default: Object.keys(PARTS).join(",") },
    threads: { type: "string", default: String(availableParallelism()) },
    rounds: { type: "string", default: "3" },
    batches: { type: "string" },
    python: { type: "string" },
  },
});
const threads = Number(flags.threads);
const batches = flags.batches === undefined ? undefined : Number(flags.batches);
console.log(`${cpus()[0]?.model}, ${threads} threads, load ${loadavg()[0].toFixed(1)}`);
const found = {};
for (const name of flags.only.split(",")) {
  if (!PARTS[name]) throw new Error(`expected parts of ${Object.keys(PARTS).join(", ")}, found ${name}`);
  console.log(`\n${name}`);
  Object.assign(
    found,
    await PARTS[name]({ threads, rounds: Number(flags.rounds), batches, python: flags.python }),
  );
}
console.log(JSON.stringify({ ...found, threads, load: Number(loadavg()[0].toFixed(1)) }));
