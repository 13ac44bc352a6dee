import fc from "fast-check";
import { expect, test } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { type PackShape, packLayout } from "../pack/layout.ts";
import { batchBytes, batchCount, batchOf, findRow, makePlan, type PlanOptions, planTotals } from "./plan.ts";
import { decodePlan, encodePlan, planHashOf } from "./plan-file.ts";

const shape: PackShape = { taps: 2, hidden: 16, hasLossMask: true, metadataBytes: 320 };
const options: PlanOptions = {
  shape,
  packBytesMax: 64 * 1024,
  order: "shuffled",
  seed: 0,
  maxTokens: null,
  long: "skip",
  positions: null,
};

const plans = fc
  .record({
    lengths: fc.array(fc.oneof(fc.integer({ min: 0, max: 900 }), fc.integer({ min: 65_000, max: 66_000 })), {
      minLength: 1,
      maxLength: 300,
    }),
    firstRow: fc.constantFrom(0, 17, 4_000_000_000),
    bad: fc.array(fc.nat({ max: 299 }), { maxLength: 4 }),
    packBytesMax: fc.integer({ min: 1, max: 400_000 }),
    order: fc.constantFrom("shuffled" as const, "longest-first" as const),
    seed: fc.maxSafeNat(),
    maxTokens: fc.option(fc.integer({ min: 1, max: 800 })),
    long: fc.constantFrom("skip" as const, "truncate" as const),
    positions: fc.option(fc.integer({ min: 1, max: 700 })),
  })
  .map(({ lengths, firstRow, bad, ...chosen }) => ({
    rows: {
      lengths: Uint32Array.from([...lengths, 1]),
      firstRow,
      badRows: Uint32Array.from(bad.filter((i) => i < lengths.length).map((i) => i + firstRow)),
    },
    options: { ...options, ...chosen },
  }));

const rowsHash = "12".repeat(32);

test("every row is planned or skipped, exactly once, whatever the rows and options", () => {
  fc.assert(
    fc.property(plans, ({ rows, options }) => {
      const plan = makePlan(rows, options);
      const all = [...plan.rows, ...plan.skippedRows].sort((a, b) => a - b);
      expect(all).toEqual([...rows.lengths].map((_, i) => rows.firstRow + i));
      plan.rows.forEach((row, at) => {
        const length = rows.lengths[row - rows.firstRow]!;
        const limit = options.long === "truncate" ? (options.maxTokens ?? length) : length;
        expect(plan.tokens[at]).toBe(Math.min(length, limit));
      });
    }),
  );
});

test("no batch is empty or over the bound, except by one sample that is larger alone", () => {
  fc.assert(
    fc.property(plans, ({ rows, options }) => {
      const plan = makePlan(rows, options);
      const seen: number[] = [];
      for (let b = 0; b < batchCount(plan); b += 1) {
        const batch = batchOf(plan, b);
        const layout = packLayout(batch, options.shape);
        expect(batchBytes(plan, b)).toBe(layout.bytes);
        expect(batch.samples.length).toBeGreaterThan(0);
        if (layout.bytes > options.packBytesMax) expect(batch.samples.length).toBe(1);
        seen.push(...batch.samples.map(({ row }) => row));
      }
      expect(seen).toEqual([...plan.rows]);
    }),
  );
});

test("batches are made of like lengths: sorted by length, they do not interleave", () => {
  fc.assert(
    fc.property(plans, ({ rows, options }) => {
      const plan = makePlan(rows, options);
      const spans = Array.from({ length: batchCount(plan) }, (_, b) => {
        const tokens = batchOf(plan, b).samples.map((s) => s.tokens);
        expect(tokens).toEqual([...tokens].sort((x, y) => y - x));
        return { most: tokens[0]!, least: tokens.at(-1)! };
      }).sort((x, y) => y.most - x.most || y.least - x.least);
      for (let i = 1; i < spans.length; i += 1)
        expect(spans[i]!.most).toBeLessThanOrEqual(spans[i - 1]!.least);
    }),
  );
});

test("a plan file reads back as the same plan, and the same input gives the same bytes", () => {
  fc.assert(
    fc.property(plans, ({ rows, options }) => {
      const file = encodePlan(makePlan(rows, options), rowsHash);
      const again = encodePlan(makePlan(rows, options), rowsHash);
      expect(planHashOf(again)).toBe(planHashOf(file));
      expect(decodePlan(file, "plan")).toEqual(makePlan(rows, options));
    }),
  );
});

test("the plan of a known dataset has a known hash: no machine or version of Node makes another", () => {
  const lengths = Uint32Array.from({ length: 5_000 }, (_, i) => (i * 2_654_435_761) % 1_500);
  const plan = makePlan({ lengths, firstRow: 3 }, { ...options, seed: 2 ** 52 + 12345, maxTokens: 1_400 });
  expect(planHashOf(encodePlan(plan, rowsHash))).toBe(
    "2624fe19a8d60af63842122bada8ea35901fdbd1548785cde65b838a9251c85e",
  );
});

test("the longest batches stand first, and the rest of the order follows the seed", () => {
  const lengths = Uint32Array.from({ length: 4_000 }, (_, i) => 1 + ((i * 7_919) % 1_000));
  const plan = (seed: number) => makePlan({ lengths, firstRow: 0 }, { ...options, seed });
  const one = plan(1);
  expect(batchOf(one, 0).samples[0]!.tokens).toBe(1_000);
  expect(one.rows).toEqual(plan(1).rows);
  expect(one.rows).not.toEqual(plan(2).rows);
});

test("any prefix of a shuffled plan is a fair sample of the dataset's tokens", () => {
  // Lengths drift along the dataset, as they do where it was put together from several sources.
  const lengths = Uint32Array.from({ length: 60_000 }, (_, i) => 50 + ((i * 7_919) % 400) + i / 100);
  const plan = makePlan({ lengths, firstRow: 0 }, options);
  const meanRow = 30_000;
  const meanTokens = planTotals(plan).tokens / 60_000;
  for (const share of [0.1, 0.3, 0.6]) {
    const end = plan.batchStart[Math.floor(batchCount(plan) * share)]!;
    const sum = (values: Uint32Array) => values.subarray(0, end).reduce((a, b) => a + b, 0) / end;
    expect(Math.abs(sum(plan.rows) / meanRow - 1)).toBeLessThan(0.05);
    expect(Math.abs(sum(plan.tokens) / meanTokens - 1)).toBeLessThan(0.05);
  }
});

test("longest-first descends, and rows of one length keep the dataset's order", () => {
  const plan = makePlan(
    { lengths: Uint32Array.of(5, 9, 5, 70_000, 9), firstRow: 10 },
    { ...options, order: "longest-first" },
  );
  expect([...plan.rows]).toEqual([13, 11, 14, 10, 12]);
});

test("each row that is skipped has its reason", () => {
  const lengths = Uint32Array.of(0, 10, 11, 21, 12, 7);
  const rows = { lengths, firstRow: 0, badRows: Uint32Array.of(5) };
  const places = (chosen: Partial<PlanOptions>) => {
    const plan = makePlan(rows, { ...options, ...chosen });
    return [...lengths].map((_, row) => {
      const place = findRow(plan, row);
      return place.kind === "skipped" ? place.reason : place.kind === "planned" ? place.tokens : "?";
    });
  };
  expect(places({})).toEqual(["empty", 10, 11, 21, 12, "bad-ids"]);
  expect(places({ maxTokens: 10 })).toEqual([
    "empty",
    10,
    "over-max-tokens",
    "over-max-tokens",
    "over-max-tokens",
    "bad-ids",
  ]);
  expect(places({ maxTokens: 10, long: "truncate" })).toEqual(["empty", 10, 10, 10, 10, "bad-ids"]);
  expect(places({ positions: 20 })).toEqual(["empty", 10, 11, "over-positions", 12, "bad-ids"]);
  expect(places({ positions: 11, maxTokens: 12, long: "truncate" })).toEqual([
    "empty",
    10,
    11,
    "over-positions",
    "over-positions",
    "bad-ids",
  ]);
  expect(findRow(makePlan(rows, options), 6)).toEqual({ kind: "unknown" });
});

test("a sample of more than 2 GiB is skipped at plan time", () => {
  const wide = { ...shape, taps: 5, hidden: 5_120, hasLossMask: false };
  const most = Math.floor(2 ** 31 / (5 * 5_120 * 2 + 8));
  const plan = makePlan(
    { lengths: Uint32Array.of(most, most + 1), firstRow: 0 },
    { ...options, shape: wide },
  );
  expect([...plan.rows]).toEqual([0]);
  expect(findRow(plan, 1)).toEqual({ kind: "skipped", reason: "over-2GiB" });
});

test("findRow names the batch that holds the row", () => {
  const plan = makePlan(
    { lengths: Uint32Array.from({ length: 900 }, (_, i) => 1 + (i % 90)), firstRow: 5 },
    options,
  );
  for (let row = 5; row < 905; row += 1) {
    const place = findRow(plan, row);
    if (place.kind !== "planned") throw new Error(`row ${row} is ${place.kind}`);
    expect(batchOf(plan, place.batch).samples).toContainEqual({ row, tokens: place.tokens });
  }
});

test.each([
  ["no rows", [], {}, EXIT.configuration, "no rows"],
  ["nothing but empty rows", [0, 0, 0], {}, EXIT.configuration, "no row is left of 3: 3 empty"],
  ["an odd shape", [1], { shape: { ...shape, taps: 1, hidden: 6 } }, EXIT.usage, "multiple of 4"],
  ["no pack bytes", [1], { packBytesMax: 0 }, EXIT.usage, "expected a size"],
  ["a fraction of a token", [1], { maxTokens: 0.5 }, EXIT.usage, "expected at least 1"],
  ["a negative seed", [1], { seed: -1 }, EXIT.usage, "from 0"],
])("%s: no plan, but an error that says why", (_, lengths, chosen, exit, message) => {
  try {
    makePlan({ lengths: Uint32Array.from(lengths), firstRow: 0 }, { ...options, ...chosen });
    expect.unreachable();
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    expect(error.exit).toBe(exit);
    expect(error.message).toContain(message);
  }
});

test("ten thousand tiny samples do not make one batch: messages and headers stay bounded", () => {
  const plan = makePlan(
    { lengths: new Uint32Array(10_000).fill(1), firstRow: 0 },
    { ...options, packBytesMax: 2 ** 30 },
  );
  expect(batchCount(plan)).toBe(2);
});
