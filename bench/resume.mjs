#!/usr/bin/env node
// bench resume: a run of 100,000 packs, all but a few in the bucket, goes on from the bucket alone on an empty machine.
// first_batch_s: from the start of `forebay resume` to the first batch handed to an engine; wanted <= 15.
//   --objects N   default 100000
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { crc32c } from "../dist/base/checksum.js";
import { eachOf } from "../dist/base/each.js";
import { batchBytes, batchCount } from "../dist/plan/plan.js";
import { loadStoredRun } from "../dist/run/stored-run.js";
import { parseAddress } from "../dist/store/address.js";
import { packKey } from "../dist/store/keys.js";
import { openStore } from "../dist/store/open.js";
import { eventsOf, forebay, ROOT, timeOf } from "./support/program.mjs";
import { startWeed } from "./support/weed.mjs";

const { values: flags } = parseArgs({ options: { objects: { type: "string", default: "100000" } } });
const objects = Number(flags.objects);
/** Left for the resumed run. */
const REST = 8;

const scratch = mkdtempSync(join(tmpdir(), "forebay-bench-"));
const server = await startWeed();
let exitCode = 1;
try {
  await main();
  exitCode = 0;
} finally {
  server.stop();
  rmSync(scratch, { recursive: true, force: true });
  process.exitCode = exitCode;
}

async function main() {
  console.log(
    `${cpus().length} x ${cpus()[0].model}; Node ${process.version}; SeaweedFS on loopback; ${objects} packs`,
  );
  const first = machine("first");
  const rows = Array.from({ length: objects }, (_, i) => `{"input_ids":[${i % 384},${(7 * i) % 384},3]}\n`);
  writeFileSync(join(first, "rows.jsonl"), rows.join(""));
  const address = "s3://bench/p/resume";
  const common = [
    "--model",
    join(ROOT, "fixtures/models/random-qwen3"),
    "--endpoint",
    server.endpoint,
    "--no-gate",
  ];
  const limits = ["--spool-bytes", "64MiB", "--port", "0", "--progress", "quiet"];

  // One row a pack; stopped as soon as a pack is committed, which is after run.json, plan and rows.
  const args = [
    "run",
    address,
    ...common,
    ...limits,
    "--dataset",
    "rows.jsonl",
    "--taps",
    "1,3",
    "--pack-bytes",
    "1KiB",
  ];
  await forebay([...args, "--run-dir", join(first, "run")], {
    cwd: first,
    env: server.env,
    onChild: (child) => {
      const watch = setInterval(() => {
        if (eventsOf(join(first, "run")).some(({ event }) => event === "batch.committed"))
          child.kill("SIGTERM");
      }, 200);
      child.once("exit", () => clearInterval(watch));
    },
  });

  Object.assign(process.env, server.env);
  const spec = parseAddress(address, {
    endpoint: server.endpoint,
    region: null,
    profile: null,
    pathStyle: null,
  });
  const store = await openStore(spec, { sockets: 64 });
  const { plan } = await loadStoredRun(store, { cacheDirectory: null });
  console.log(`filling the bucket: ${batchCount(plan)} packs of about ${batchBytes(plan, 0)} bytes`);
  // A resume asks LIST for sizes only, so zeros of the right length stand for packs.
  await eachOf(Array.from({ length: batchCount(plan) - REST }).keys(), 64, async (batch) => {
    const body = Buffer.alloc(batchBytes(plan, batch));
    await store.put(packKey(batch), body, { crc32c: crc32c(body), createOnly: true });
  });
  store.close();

  const second = machine("second");
  const startMs = Date.now();
  const code = await forebay(["resume", address, ...common, ...limits, "--run-dir", join(second, "run")], {
    cwd: second,
    env: server.env,
  });
  if (code !== 0) throw new Error(`the resumed run ended with ${code}`);
  const events = eventsOf(join(second, "run"));
  const firstBatchS = (timeOf(events, "run.first_batch") - startMs) / 1000;
  const committed = events.filter(({ event }) => event === "batch.committed").length;
  console.log(
    `first batch after ${firstBatchS.toFixed(1)} s; ${committed} packs computed by the resumed run`,
  );
  console.log(JSON.stringify({ first_batch_s: Number(firstBatchS.toFixed(2)), objects: batchCount(plan) }));
}

function machine(name) {
  const directory = join(scratch, name);
  mkdirSync(directory);
  return directory;
}
