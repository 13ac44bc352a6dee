/**
 * How wrong the ETA is, and how often its band holds the true end. Simulated runs, and recorded ones named on the
 * command line: files with one JSON object in the shape of `Recording` (simulated-run.d.mts).
 */
import { readFileSync } from "node:fs";
import { EtaLog, estimateEta } from "../dist/run/eta.js";
import { replay, simulateRun } from "./support/simulated-run.mjs";

const SEEDS = 10;
const SHARES = [0.05, 0.1, 0.15, 0.25, 0.5];
const steady = { samples: 20_000 };
const SCENARIOS = {
  "shuffled, engines the limit": steady,
  "longest first, engines the limit": { ...steady, order: "longest-first" },
  "longest first, much attention": {
    ...steady,
    order: "longest-first",
    attentionShare: 4e-4,
    tokensMax: 2_048,
  },
  "shuffled, link the limit": { ...steady, uplinkBytesPerS: 4e8 },
  "longest first, link the limit": { ...steady, order: "longest-first", uplinkBytesPerS: 4e8 },
  "shuffled, few slow batches": { samples: 1_500, engines: 2, tokensPerS: 300, bytesAToken: 1_536 },
  "shuffled, noisy": { ...steady, noise: 0.25, wander: 0.08 },
};

const runs = Object.entries(SCENARIOS).flatMap(([name, options]) =>
  Array.from({ length: SEEDS }, (_, seed) => ({ name, recording: simulateRun({ ...options, seed }) })),
);
for (const file of process.argv.slice(2)) {
  runs.push({ name: file, recording: JSON.parse(readFileSync(file, "utf8")) });
}

const byName = new Map();
for (const { name, recording } of runs) {
  const looks = replay(recording, { EtaLog, estimateEta }).filter((look) => look.done < 0.98);
  const result = byName.get(name) ?? {
    errors: SHARES.map(() => []),
    inBand: 0,
    looks: 0,
    worstAfter15: 0,
    bands: [],
  };
  for (const [i, share] of SHARES.entries()) {
    const look = looks.find(({ done }) => done >= share);
    if (look && look.eta.p50_s !== null) result.errors[i].push(errorOf(look));
  }
  for (const look of looks.filter(({ done, eta }) => done >= 0.1 && eta.p50_s !== null)) {
    result.looks += 1;
    if (look.trueS >= look.eta.p10_s && look.trueS <= look.eta.p90_s) result.inBand += 1;
    result.bands.push((look.eta.p90_s - look.eta.p10_s) / (look.elapsedS + look.trueS));
    if (look.done >= 0.15) result.worstAfter15 = Math.max(result.worstAfter15, Math.abs(errorOf(look)));
  }
  byName.set(name, result);
}

const percent = (share) => (share === null ? "-" : `${(share * 100).toFixed(1)} %`);
console.log(
  "Error of the median, as a share of the whole run's time (worst of the runs), and its p10-p90 band.\n",
);
console.log(
  ["scenario".padEnd(34), ...SHARES.map((s) => `at ${s * 100} %`), "in band", "worst >15 %", "band"].join(
    "\t",
  ),
);
let [worst, looks, inBand] = [0, 0, 0];
for (const [name, result] of byName) {
  const errors = result.errors.map((list) => (list.length > 0 ? Math.max(...list.map(Math.abs)) : null));
  const width = result.bands.reduce((sum, band) => sum + band, 0) / result.bands.length;
  console.log(
    [
      name.padEnd(34),
      ...errors.map(percent),
      percent(result.inBand / result.looks),
      percent(result.worstAfter15),
      percent(width),
    ].join("\t"),
  );
  worst = Math.max(worst, result.worstAfter15);
  looks += result.looks;
  inBand += result.inBand;
}
console.log(JSON.stringify({ worst_error_after_15: worst, in_band: inBand / looks, runs: runs.length }));

/** Of the whole run's time: what "within 10 %" of the true end means to someone who waits for it. */
function errorOf({ trueS, elapsedS, eta }) {
  return (eta.p50_s - trueS) / (elapsedS + trueS);
}
