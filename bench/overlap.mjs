#!/usr/bin/env node
// bench overlap: what storing costs while the link is faster than the engine.
// overlap = seconds from the first batch to the last commit of a whole run (engine, spool, upload, verify)
//         / seconds that the same engine takes for the same batches alone; wanted <= 1.05. Rounds in turn, medians.
//   --rounds N   default 3
import { mkdirSync, mkdtempSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { silentLog } from "../dist/base/log.js";
import { openRowsFile } from "../dist/dataset/rows-file.js";
import { Fleet } from "../dist/engine/fleet.js";
import { onnxEngineCommand } from "../dist/engine/onnx/command.js";
import { packLayout } from "../dist/pack/layout.js";
import { batchCount, batchOf } from "../dist/plan/plan.js";
import { loadStoredRun } from "../dist/run/stored-run.js";
import { parseAddress } from "../dist/store/address.js";
import { openStore } from "../dist/store/open.js";
import { eventsOf, forebay, ROOT, timeOf } from "./support/program.mjs";
import { startWeed } from "./support/weed.mjs";

const { values: flags } = parseArgs({ options: { rounds: { type: "string", default: "3" } } });
const rounds = Number(flags.rounds);
const model = join(ROOT, "demo/tiny-qwen3");
const taps = [1, 3, 5];
/** A GPU leaves the cores to what stores: here the engine leaves one, which the S3 server has to share. */
const threads = Math.max(1, cpus().length - 1);

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
    `${cpus().length} x ${cpus()[0].model}; Node ${process.version}; SeaweedFS on loopback, spool in ${tmpdir()}; ` +
      `verify: checksum by HEAD; tiny-qwen3, 1,319 GSM8K conversations, one engine of ${threads} threads`,
  );
  const cwd = join(scratch, "machine");
  mkdirSync(cwd);
  const dataset = join(cwd, "dataset");
  const tokenize = [
    "tokenize",
    "--model",
    model,
    "--input",
    join(ROOT, "fixtures/gsm8k-test.jsonl"),
    "--output",
    dataset,
  ];
  await forebay(tokenize, { cwd, env: {} });
  const whole = [];
  const alone = [];
  for (let round = 0; round < rounds; round += 1) {
    whole.push(await wholeRun(cwd, dataset, round));
    alone.push(await engineAlone(cwd, round));
    console.log(
      `round ${round}: whole run ${whole.at(-1).toFixed(1)} s, engine alone ${alone.at(-1).toFixed(1)} s`,
    );
  }
  const overlap = median(whole.map((s, i) => s / alone[i]));
  console.log(JSON.stringify({ overlap: Number(overlap.toFixed(3)) }));
}

async function wholeRun(cwd, dataset, round) {
  const runDirectory = join(cwd, `run-${round}`);
  const code = await forebay(
    [
      ...["run", `s3://bench/p/overlap-${round}`, "--endpoint", server.endpoint, "--model", model],
      ...["--dataset", dataset, "--taps", taps.join(","), "--engines", "1", "--threads", String(threads)],
      ...[
        "--run-dir",
        runDirectory,
        "--pack-bytes",
        "4MiB",
        "--spool-bytes",
        "1GiB",
        "--no-gate",
        "--port",
        "0",
      ],
      ...["--progress", "quiet"],
    ],
    { cwd, env: server.env },
  );
  if (code !== 0) throw new Error(`the run ended with ${code}`);
  const events = eventsOf(runDirectory);
  return (timeOf(events, "batch.committed", { last: true }) - timeOf(events, "run.first_batch")) / 1000;
}

/** The same batches through the same engine, into one scratch file that nobody reads. */
async function engineAlone(cwd, round) {
  Object.assign(process.env, server.env);
  const spec = parseAddress(`s3://bench/p/overlap-${round}`, {
    endpoint: server.endpoint,
    region: null,
    profile: null,
    pathStyle: null,
  });
  const store = await openStore(spec);
  const { plan, record } = await loadStoredRun(store, { cacheDirectory: null });
  store.close();
  const rows = openRowsFile(join(cwd, `run-${round}`, "inputs", record.files.rows.replace("inputs/", "")));
  const { shape } = plan.options;
  let batch = 0;
  let firstMs = 0;
  let lastMs = 0;
  const fleet = new Fleet({
    engines: [
      {
        label: "onnx-0",
        shard: 0,
        command: onnxEngineCommand({ env: { PATH: process.env.PATH } }),
        load: { model, dtype: "auto", device: null, taps, options: { threads } },
      },
    ],
    shape,
    log: silentLog,
    stderrDirectory: null,
    scratchDirectory: join(cwd, "scratch"),
    skipsMax: 0,
    next: async () => {
      if (batch === batchCount(plan)) return null;
      firstMs ||= Date.now();
      const layout = packLayout(batchOf(plan, batch), shape);
      const file = join(cwd, `alone-${batch}.part`);
      writeFileSync(file, "");
      truncateSync(file, layout.bytes);
      const samples = layout.samples.map(({ row, tokens, statesByte }) => ({
        row,
        ids: Array.from(rows.ids(row).subarray(0, tokens)),
        offset: statesByte,
      }));
      return { batch: batch++, attempt: 1, file, samples };
    },
    newAttempt: () => Promise.reject(new Error("no attempt should fail")),
    done: ({ work }) => {
      lastMs = Date.now();
      rmSync(work.file);
    },
  });
  await fleet.run();
  rows.close();
  return (lastMs - firstMs) / 1000;
}

function median(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
}
