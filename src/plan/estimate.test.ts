import { expect, test } from "vitest";
import { trainerUses } from "../model/trainers.ts";
import { estimateRun, type Resources } from "./estimate.ts";
import { makePlan, type PlanTotals } from "./plan.ts";
import { lengthHistogram, planReport, planReportJson, renderPlanReport } from "./report.ts";

// The run that "The arithmetic nobody did" of the design is about.
const tokens = 914_000 * 335;
const totals: PlanTotals = {
  rows: 914_000,
  planned: 914_000,
  skipped: [],
  tokens,
  batches: 234_000,
  bytes: tokens * 51_200,
  largestPackBytes: 64 * 2 ** 20,
  longestTokens: 4_096,
};
const unknown: Resources = {
  spoolBytes: null,
  uplinkBytesPerS: null,
  gpuTokensPerS: null,
  gpus: 8,
  pricePerHour: null,
  storagePricePerTbMonth: null,
  egressPricePerTb: null,
  currency: "$",
};
const gigabitPerS = 125_000_000;

test("306 M tokens of 51,200 bytes are 15.7 TB, $360 or $94 a month, $1,411 an epoch", () => {
  expect(totals.bytes / 1e12).toBeCloseTo(15.7, 1);
  const dear = estimateRun(totals, { ...unknown, storagePricePerTbMonth: 23, egressPricePerTb: 90 });
  expect(dear.money.storagePerMonth).toBeCloseTo(360.6, 1);
  expect(dear.money.epoch).toBeCloseTo(1_411, 0);
  const costly = estimateRun(totals, {
    ...unknown,
    uplinkBytesPerS: 10 * gigabitPerS,
    gpuTokensPerS: 8_800,
    pricePerHour: 20,
    egressPricePerTb: 90,
  });
  expect(costly.sentences.at(-1)).toContain("train in the bucket's own region");
  const cheap = estimateRun(totals, { ...unknown, storagePricePerTbMonth: 6 });
  expect(cheap.money.storagePerMonth).toBeCloseTo(94, 0);
});

test.each([
  ["8 H100, slow", 8, 5_800, 1.8, 2.4],
  ["8 H100, fast", 8, 10_700, 1.0, 4.4],
  ["4 RTX PRO 6000, slow", 4, 3_000, 7.1, 0.6],
  ["4 RTX PRO 6000, fast", 4, 5_000, 4.3, 1.0],
])("%s: hours of compute and GB/s of states as the design has them", (_, gpus, rate, hours, gbPerS) => {
  const estimate = estimateRun(totals, { ...unknown, gpus, gpuTokensPerS: rate });
  expect(estimate.computeHours).toBeCloseTo(hours, 1);
  expect(totals.bytes / estimate.computeHours! / 3600 / 1e9).toBeCloseTo(gbPerS, 1);
});

test("1 Gb/s takes 39 hours; 10 Gb/s takes 3.9 and feeds 2.5 of 8 H100", () => {
  // 8,800 tokens/s: the middle of 30-55 % of an H100's peak.
  const slow = estimateRun(totals, { ...unknown, uplinkBytesPerS: gigabitPerS, gpuTokensPerS: 8_800 });
  expect(slow.uploadHours).toBeCloseTo(38.7, 1);
  expect(slow.limit).toBe("uplink");
  const fast = estimateRun(totals, { ...unknown, uplinkBytesPerS: 10 * gigabitPerS, gpuTokensPerS: 8_800 });
  expect(fast.hours).toBeCloseTo(3.9, 1);
  expect(fast.gpusFed).toBeCloseTo(2.5, 1);
  expect(fast.sentences).toEqual([
    "The uplink is the limit: it feeds 2.5 of your 8 GPUs (3.9 h of upload for 72 min of compute); 3 GPUs would finish as soon; 32 Gb/s would keep all busy.",
  ]);
});

test("4 RTX PRO 6000 on 10 Gb/s are bound by compute, and the words say so", () => {
  const estimate = estimateRun(totals, {
    ...unknown,
    gpus: 4,
    uplinkBytesPerS: 10 * gigabitPerS,
    gpuTokensPerS: 4_000,
    pricePerHour: 8,
  });
  expect(estimate.limit).toBe("compute");
  expect(estimate.money.run).toBeCloseTo(8 * 5.3, 0);
  expect(estimate.sentences[0]).toBe(
    "The GPUs are the limit (5.3 h): the uplink could feed 5.5 such GPUs, you have 4.",
  );
});

test("a spool that is too small for its packs, and one that the states do not fit, are said in words", () => {
  const small = estimateRun(totals, { ...unknown, spoolBytes: 2 ** 30 });
  expect(small.spoolBytesMin).toBe(17 * 64 * 2 ** 20);
  expect(small.sentences[0]).toContain("A spool of 1.00 GiB will be refused");
  const fair = estimateRun(totals, { ...unknown, spoolBytes: 200 * 2 ** 30, gpuTokensPerS: 8_800 });
  expect(fair.sentences[0]).toContain("The states (15.7 TB) do not fit the 200.0 GiB spool");
  expect(fair.sentences[0]).toContain("73 times over");
  expect(fair.spoolLastsS).toBeCloseTo(59.6, 0);
});

test("what is not known stays null: nothing is made up", () => {
  const estimate = estimateRun(totals, unknown);
  expect(estimate).toMatchObject({ hours: null, gpusFed: null, limit: "unknown", sentences: [] });
  expect(estimate.money).toEqual({ currency: "$", run: null, storagePerMonth: null, epoch: null });
});

test("one PUT and one separate check an object, and few LISTs", () => {
  expect(estimateRun(totals, unknown).requests).toEqual({ put: 234_003, head: 234_003, list: 240 });
});

const plan = makePlan(
  { lengths: Uint32Array.from({ length: 5_000 }, (_, i) => (i % 700) * (i % 3)), firstRow: 0 },
  {
    shape: { taps: 3, hidden: 64, hasLossMask: true, metadataBytes: 384 },
    packBytesMax: 64 * 2 ** 20,
    order: "shuffled",
    seed: 0,
    maxTokens: 1_000,
    long: "skip",
    positions: null,
  },
);

test("the histogram counts every planned row and token once", () => {
  const bins = lengthHistogram(plan.tokens);
  expect(bins.reduce((sum, { rows }) => sum + rows, 0)).toBe(plan.rows.length);
  expect(bins.reduce((sum, bin) => sum + bin.tokens, 0)).toBe(plan.tokens.reduce((a, b) => a + b, 0));
  expect(
    lengthHistogram(Uint32Array.of(1, 2, 3, 4, 1_023, 1_024)).map(({ from, rows }) => [from, rows]),
  ).toEqual(
    [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024].map((from) => [
      from,
      { 1: 1, 2: 2, 4: 1, 512: 1, 1024: 1 }[from] ?? 0,
    ]),
  );
});

test("the report names rows, bytes, requests and skips, in text and in JSON that survives a round trip", () => {
  const report = planReport(plan, trainerUses({ blocks: [1, 3], lastState: false }), {
    ...unknown,
    gpus: 1,
    spoolBytes: 2 ** 30,
  });
  const text = renderPlanReport(report);
  expect(text).toMatch(
    /^rows {6}[\d,]+ planned of 5,000, [\d,]+ skipped \([\d,]+ empty, [\d,]+ over-max-tokens\)$/m,
  );
  expect(text).toMatch(/^ +512-1,023 \|#+ *\|/m);
  expect(text).toMatch(/^skipped {3}rows 0 empty, [\s\S]*and [\d,]+ more$/m);
  expect(text).toContain("The whole run fits the spool");
  expect(text).toMatch(/^trainers {2}speculators-dflash {2}no: it needs the last block's output/m);
  expect(text).toMatch(/^ {10}zlab {16}yes: "dflash_config": \{"target_layer_ids": \[1, 3\]\}$/m);
  for (const line of text.split("\n")) expect(line.length).toBeLessThanOrEqual(100);
  const json = planReportJson(report);
  expect(JSON.parse(JSON.stringify(json))).toEqual(json);
  expect(json).toMatchObject({ rows: 5_000, objects: plan.batchStart.length - 1, hours: null });
  expect(json.trainers).toMatchObject([{ trainer: "speculators-dflash", ok: false }, {}, {}, { ok: true }]);
});
