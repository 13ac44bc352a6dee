// One measured run of our data plane in a process of its own. argv[2]: options as JSON; prints one JSON line.
//   whole: true    finished states -> pack -> spool -> upload -> verify -> evict
//   whole: false   the same packs, ready in the spool before the clock starts: upload -> verify -> evict
import { Worker } from "node:worker_threads";
import { silentLog } from "../../dist/base/log.js";
import { packLayout } from "../../dist/pack/layout.js";
import { metadataBytesOf } from "../../dist/pack/metadata.js";
import { Spool } from "../../dist/spool/spool.js";
import { Uploader } from "../../dist/spool/uploader.js";

const options = JSON.parse(process.argv[2]);
const { taps, hidden, tokens, packs, samplesPerPack, inflightBytes, identity } = options;
const blocks = Array.from({ length: taps }, (_, i) => i);
const numbering = { blocks, vllm: blocks, hf: blocks, last_state: false, last_state_norm: null };
const shape = { taps, hidden, hasLossMask: true, metadataBytes: metadataBytesOf(numbering) };
const ids = Int32Array.from({ length: tokens }, (_, i) => i);
const lossMask = new Uint8Array(tokens).fill(1);
const nowMs = () => performance.now();
/** Packs that go before the clock starts: threads and connections open, buffers touched. boto3 is warmed up too. */
const WARM = 8;

const layoutOf = (index) => {
  const first = index * samplesPerPack;
  const samples = Array.from({ length: samplesPerPack }, (_, i) => ({ row: first + i, tokens }));
  return packLayout({ index, samples }, shape);
};
const packBytes = layoutOf(0).bytes;
const spool = await Spool.open({
  directory: options.directory,
  // A spool as small as two engines need, so that eviction is part of the whole; enough for all where they wait.
  budgetBytes: (options.whole ? 16 : packs + WARM) * (packBytes + 4096),
  floorBytes: 0,
  owner: { runId: identity, part: "1/1" },
  log: silentLog,
  nowMs,
});
const startUploader = () =>
  new Uploader({
    spool,
    spec: options.spec,
    traits: { publish: "create-only", verify: "checksum", refusesWrongChecksum: true, notes: [] },
    uploads: options.uploads,
    inflightBytes,
    log: { ...silentLog, error: (event, fields) => console.error(event, fields) },
    nowMs,
    random: Math.random,
    onEvent: (event) => {
      if (event.kind === "failed" || event.kind === "blocked") console.error(event);
    },
  });

const producer = new Worker(new URL("./producer.mjs", import.meta.url));
const answers = new Map();
producer.on("message", ({ id, crcs }) => answers.get(id)(crcs));

async function produce(index) {
  const layout = layoutOf(index);
  const reservation = await spool.reserve(layout.bytes);
  const part = await reservation.createPart(index, 0);
  const crcs = await new Promise((resolve) => {
    answers.set(index, resolve);
    producer.postMessage({ id: index, part, samples: layout.samples });
  });
  answers.delete(index);
  const outcomes = crcs.map((statesCrc32c) => ({ kind: "done", ids, lossMask, statesCrc32c }));
  const pack = await reservation.finish({ layout, shape, facts: { identity, numbering }, outcomes });
  return [pack, { identity, layout }];
}

const uploader = startUploader();
const warm = [];
for (let index = packs; index < packs + WARM; index += 1) warm.push(await produce(index));
for (const [pack, expected] of warm) uploader.enqueue(pack, expected);
await uploader.idle();

const waiting = [];
if (!options.whole) for (let index = 0; index < packs; index += 1) waiting.push(await produce(index));

const cpuBefore = process.cpuUsage();
const startMs = nowMs();
if (options.whole) {
  // Two batches under way, as an engine asks for.
  let next = 0;
  const engine = async () => {
    while (next < packs) uploader.enqueue(...(await produce(next++)));
  };
  await Promise.all([engine(), engine()]);
} else for (const [pack, expected] of waiting) uploader.enqueue(pack, expected);
await uploader.idle();
const seconds = (nowMs() - startMs) / 1000;
const cpu = process.cpuUsage(cpuBefore);
const stats = uploader.stats();
if (stats.committed !== packs + WARM || spool.usage().bytes !== 0)
  throw new Error(`committed ${stats.committed - WARM} of ${packs}`);
console.log(
  JSON.stringify({
    seconds,
    cpu_seconds: (cpu.user + cpu.system) / 1e6,
    user_seconds: cpu.user / 1e6,
    bytes: packs * packBytes,
    rss_bytes: process.resourceUsage().maxRSS * 1024,
    limit: stats.limit,
    retries: stats.retries,
    stages: stats.stages,
  }),
);
await uploader.close();
await spool.close({ remove: true });
await producer.terminate();
