#!/usr/bin/env node
// bench eta: how wrong the ETA is, and how often its band holds the true end: over simulated runs, and over the real
// ones in bench/recordings. Targets: the median within 10 % after 15 % of the tokens, the band true from 10 % on.
//   --record NAME -- ADDRESS RUN-OPTIONS   first makes a real run, from nothing to its end, and records it under NAME;
//                    the machine should have nothing else to do, or its neighbours are what is measured
//   --only TEXT      replays only the runs whose name holds TEXT
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import { EtaLog, estimateEta } from "../dist/run/eta.js";
import { RECORDINGS, readRecordings } from "./support/recordings.mjs";
import { replay, simulateRun } from "./support/simulated-run.mjs";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const SEEDS = 10;
const SHARES = [0.05, 0.1, 0.15, 0.25, 0.5];
const SCENARIOS = {
  "shuffled, engines the limit": {},
  "longest first, engines the limit": { order: "longest-first" },
  "longest first, much attention": { order: "longest-first", attentionShare: 4e-4, tokensMax: 2_048 },
  "longest first, costly samples": { order: "longest-first", sampleTokens: 20 },
  "shuffled, link the limit": { uplinkBytesPerS: 4e8 },
  "longest first, link the limit": { order: "longest-first", uplinkBytesPerS: 4e8 },
  "shuffled, few slow batches": { samples: 1_500, engines: 2, tokensPerS: 300, bytesAToken: 1_536 },
  "shuffled, noisy": { noise: 0.25, wander: 0.08 },
};

const { values: flags, positionals } = parseArgs({
  options: { record: { type: "string" }, only: { type: "string", default: "" } },
  allowPositionals: true,
});
if (flags.record) await record(flags.record, positionals);

const runs = [
  ...Object.entries(SCENARIOS).flatMap(([name, options]) =>
    Array.from({ length: SEEDS }, (_, seed) => ({ name, recording: simulateRun({ ...options, seed }) })),
  ),
  ...readRecordings().map(({ name, recording }) => ({ name: `real: ${name}`, recording })),
];
report(runs.filter(({ name }) => name.includes(flags.only)));

function report(all) {
  const byName = new Map();
  for (const { name, recording } of all) {
    const looks = replay(recording, { EtaLog, estimateEta }).filter(
      ({ done, eta }) => done < 0.98 && eta.p50_s !== null,
    );
    const result = byName.get(name) ?? {
      errors: SHARES.map(() => null),
      inBand: 0,
      looks: 0,
      worst: 0,
      width: 0,
    };
    byName.set(name, result);
    for (const [i, share] of SHARES.entries()) {
      const look = looks.find(({ done }) => done >= share);
      // Where the first estimate came later there is none to judge.
      if (look && look.done < share + 0.03) result.errors[i] = Math.max(result.errors[i] ?? 0, errorOf(look));
    }
    for (const look of looks.filter(({ done }) => done >= 0.1)) {
      result.looks += 1;
      if (look.trueS >= look.eta.p10_s && look.trueS <= look.eta.p90_s) result.inBand += 1;
      result.width += (look.eta.p90_s - look.eta.p10_s) / (look.elapsedS + look.trueS);
      if (look.done >= 0.15) result.worst = Math.max(result.worst, errorOf(look));
    }
  }

  console.log(
    "Error of the median, as a share of the whole run's time, the worst of its runs; and the band p10-p90.\n",
  );
  const percent = (share) => (share === null ? "-" : `${(share * 100).toFixed(1)} %`).padStart(8);
  const heads = [...SHARES.map((share) => `at ${share * 100} %`), "worst>15", "in band", "width"];
  console.log(["".padEnd(34), ...heads.map((head) => head.padStart(8))].join(" "));
  const total = { worst: 0, looks: 0, inBand: 0 };
  for (const [name, { errors, worst, inBand, looks, width }] of byName) {
    const cells = [...errors, worst, inBand / looks, width / looks].map(percent);
    console.log([name.padEnd(34), ...cells].join(" "));
    total.worst = Math.max(total.worst, worst);
    total.looks += looks;
    total.inBand += inBand;
  }
  const ratios = { worst_after_15: total.worst, in_band: total.inBand / total.looks };
  console.log(JSON.stringify({ ...ratios, runs: all.length }));
}

/** Of the whole run's time: what matters to someone who waits for its end. */
function errorOf({ trueS, elapsedS, eta }) {
  return Math.abs(eta.p50_s - trueS) / (elapsedS + trueS);
}

/** A real run from nothing to its end, as the first line (what is known at the start) and an event a line. */
async function record(name, runOptions) {
  if (!/^[\w.-]+$/.test(name)) throw new Error(`--record: expected a plain name, found "${name}"`);
  const raw = join(tmpdir(), `forebay-recording-${process.pid}.jsonl`);
  rmSync(raw, { force: true });
  // Not the bundle of dist/cli.js: what listens has to get at single modules.
  const run = spawn(process.execPath, [join(ROOT, "dist/main.js"), "run", ...runOptions], {
    stdio: ["ignore", "inherit", "inherit"],
    env: {
      ...process.env,
      NODE_OPTIONS: `--import=${join(ROOT, "bench/eta/record.mjs")}`,
      FOREBAY_BENCH_RECORDING: raw,
    },
  });
  const [code] = await once(run, "exit");
  if (code !== 0) throw new Error(`the run ended with ${code}`);
  if (!existsSync(raw)) throw new Error("the run had nothing to do: name an address where none stands");
  const all = readFileSync(raw, "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
  rmSync(raw);
  const facts = all.filter(({ kind }) => kind === "facts");
  const events = all.filter(({ kind }) => kind !== "facts");
  const totals = { tokens: 0, tokensSquared: 0, bytes: 0 };
  for (const { tokens = 0, tokensSquared = 0, bytes = 0 } of events) {
    totals.tokens += tokens;
    totals.tokensSquared += tokensSquared;
    totals.bytes += bytes;
  }
  const { startS } = events.find(({ kind }) => kind === "computed");
  const slots = Math.max(...facts.map((fact) => fact.slots));
  const head = { startS, slots, attentionShare: facts[0].attentionShare, totals };
  const lines = [head, ...events.map(({ startS: _, ...event }) => event)].map((line) => JSON.stringify(line));
  mkdirSync(RECORDINGS, { recursive: true });
  writeFileSync(join(RECORDINGS, `${name}.jsonl.gz`), gzipSync(`${lines.join("\n")}\n`));
  const [minutes, batches] = [(events.at(-1).atS - startS) / 60, facts.length];
  console.log(`bench/recordings/${name}.jsonl.gz: ${batches} batches in ${minutes.toFixed(1)} min\n`);
}
