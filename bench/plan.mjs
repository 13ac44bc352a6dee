// How long it takes to plan a dataset from its rows' lengths, and what memory it needs. `npm run bench -- plan`.
// Each size runs in a process of its own, so that one's garbage does not count as the other's memory.
import { spawnSync } from "node:child_process";
import { cpus } from "node:os";
import { fileURLToPath } from "node:url";

const self = fileURLToPath(import.meta.url);
const SHAPE = { taps: 5, hidden: 5120, hasLossMask: true, metadataBytes: 512 };

if (process.argv[2] === "one") {
  await planOne(Number(process.argv[3]));
} else {
  compare();
}

async function planOne(count) {
  const { makePlan, planTotals } = await import("../dist/plan/plan.js");
  const { encodePlan, planHashOf } = await import("../dist/plan/plan-file.js");
  // Log-normal lengths with a median of 250 tokens and a long tail: about what chat datasets look like.
  const lengths = new Uint32Array(count);
  let state = 1;
  const uniform = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state + 1) / 2 ** 32;
  };
  for (let i = 0; i < count; i += 1) {
    const normal = Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
    lengths[i] = Math.min(32_768, Math.max(1, Math.round(250 * Math.exp(0.75 * normal))));
  }
  const options = {
    shape: SHAPE,
    packBytesMax: 64 * 2 ** 20,
    order: "shuffled",
    seed: 0,
    maxTokens: 16_384,
    long: "skip",
    positions: null,
  };
  const startMs = performance.now();
  const plan = makePlan({ lengths, firstRow: 0 }, options);
  const planMs = performance.now();
  const file = encodePlan(plan, "0".repeat(64));
  planHashOf(file);
  const totals = planTotals(plan);
  const endMs = performance.now();
  console.log(
    JSON.stringify({
      rows: count,
      batches: totals.batches,
      plan_s: (planMs - startMs) / 1000,
      total_s: (endMs - startMs) / 1000,
      file_mb: file.length / 1e6,
      rss_mb: process.resourceUsage().maxRSS / 1024,
    }),
  );
}

function compare() {
  const results = [1_000_000, 10_000_000].map((count) => {
    const child = spawnSync(process.execPath, [self, "one", String(count)], { encoding: "utf8" });
    if (child.status !== 0) throw new Error(`planning ${count} rows failed:\n${child.stderr}`);
    return JSON.parse(child.stdout.trim().split("\n").at(-1));
  });
  console.log(`plan: 5 taps x 5120, packs of 64 MiB; Node ${process.version}, ${cpus()[0]?.model}`);
  console.log("      rows    batches   plan s   with file and totals s   file MB   peak RSS MB");
  for (const r of results) {
    console.log(
      [
        String(r.rows).padStart(10),
        String(r.batches).padStart(10),
        r.plan_s.toFixed(2).padStart(8),
        r.total_s.toFixed(2).padStart(24),
        r.file_mb.toFixed(1).padStart(9),
        r.rss_mb.toFixed(0).padStart(13),
      ].join(" "),
    );
  }
  const [million, tenMillion] = results;
  const figures = {
    rows_1m_s: round(million.total_s),
    rows_10m_s: round(tenMillion.total_s),
    rss_mb: Math.round(tenMillion.rss_mb),
  };
  console.log("targets: rows_1m_s < 3, rows_10m_s < 30, rss_mb < 1000");
  console.log(JSON.stringify(figures));
}

function round(seconds) {
  return Math.round(seconds * 100) / 100;
}
