import fc from "fast-check";
import { expect, test } from "vitest";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import type { HistoryPoint } from "../run/status.ts";
import { History, historyPoint, pointsOf } from "./history.ts";

const START_S = 1_764_547_200;

function point(t: number, tokens: number | null = 100): HistoryPoint {
  return {
    t,
    tokens_per_s: tokens,
    produced_mb_s: null,
    uploaded_mb_s: 1,
    spool_bytes: 2,
    s3_p50_ms: null,
    s3_p95_ms: null,
    s3_errors_per_s: 0,
    inflight: 3,
    limit: 4,
    gpu_util: null,
  };
}

test("a week of seconds takes thousands of points, not hundreds of thousands, and keeps its ends", () => {
  const history = new History();
  const seconds = 8 * 86_400;
  for (let s = 0; s < seconds; s += s < seconds - 3_600 ? 4 : 1) history.add(point(START_S + s));
  const points = history.points();
  expect(points.length).toBeLessThan(13_500);
  expect(points.at(-1)!.t).toBe(START_S + seconds - 1);
  expect(points[0]!.t).toBeGreaterThanOrEqual(START_S + seconds - 7 * 86_400 - 61);
  expect(points[0]!.t).toBeLessThan(START_S + seconds - 7 * 86_400 + 61);
});

test("the last ten minutes stand second by second, what is older in means of ten", () => {
  const history = new History();
  for (let s = 0; s < 1_200; s += 1) history.add(point(START_S + s, s % 10 === 0 ? 1_000 : 0));
  const { t, tokens_per_s } = history.since(0);
  const recent = t.filter((at) => at >= START_S + 600);
  expect(recent.length).toBeGreaterThanOrEqual(599);
  expect(tokens_per_s[3]).toBe(100);
  expect(t[4]! - t[3]!).toBe(10);
});

test("points always rise in time and none is kept twice, whatever order they come in", () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 0, max: 40_000 }), { maxLength: 300 }), (offsets) => {
      const history = new History();
      for (const offset of offsets) history.add(point(START_S + offset));
      const { t } = history.since(0);
      for (let i = 1; i < t.length; i += 1) expect(t[i]!).toBeGreaterThan(t[i - 1]!);
    }),
  );
});

test("unknown stays unknown in a mean, and is not counted as 0", () => {
  const history = new History();
  for (let s = 0; s < 700; s += 1) history.add(point(START_S + s, s % 2 === 0 ? null : 50));
  const columns = history.since(0);
  expect(columns.tokens_per_s[0]).toBe(50);
  expect(columns.gpu_util.every((value) => value === null)).toBe(true);
});

test("an hour in which nobody measured stays empty", () => {
  const history = new History();
  for (let s = 0; s < 300; s += 1) history.add(point(START_S + s));
  for (let s = 3_900; s < 4_200; s += 1) history.add(point(START_S + s));
  const { t } = history.since(0);
  expect(t.some((at) => at > START_S + 310 && at < START_S + 3_890)).toBe(false);
});

test("an answer is thinned to what a chart can show, and `from` leaves out what the page has", () => {
  const history = new History();
  for (let s = 0; s < 20_000; s += 1) history.add(point(START_S + s));
  expect(history.since(0, 500).t.length).toBeLessThanOrEqual(500);
  const { t } = history.since(START_S + 19_990);
  expect(t).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9].map((s) => START_S + 19_990 + s));
});

test("columns and points are two forms of the same; a restored history is equal", () => {
  const history = new History();
  for (let s = 0; s < 2_000; s += 1) history.add(point(START_S + s, s));
  expect(pointsOf(history.since(0, 1e9))).toEqual(history.points());
  const again = new History();
  again.restore(history.points().toReversed());
  expect(again.points()).toEqual(history.points());
});

test("a figure has the six digits that a chart can show", () => {
  const run = scriptedRun({
    nowMs: () => START_S * 1_000,
    edit: (document) => ({
      ...document,
      s3: { ...document.s3, mb_per_s: 787.123_456_789, p50_ms: null },
      spool: { ...document.spool, bytes: 135_291_469_824 },
    }),
  });
  const { uploaded_mb_s, spool_bytes, s3_p50_ms } = historyPoint(run.snapshot(), null);
  expect([uploaded_mb_s, spool_bytes, s3_p50_ms]).toEqual([787.123, 135_291_000_000, null]);
});

test("errors a second come from the difference of two documents, and a restart is no error", () => {
  let nowMs = START_S * 1_000;
  let retries = 10;
  const run = scriptedRun({
    nowMs: () => nowMs,
    edit: (document) => ({ ...document, s3: { ...document.s3, retries, verify_failures: 0 } }),
  });
  const first = run.snapshot();
  nowMs += 2_000;
  retries = 16;
  const second = run.snapshot();
  expect(historyPoint(second, first).s3_errors_per_s).toBe(3);
  retries = 0;
  nowMs += 1_000;
  expect(historyPoint(run.snapshot(), second).s3_errors_per_s).toBeNull();
  expect(historyPoint(first, null).s3_errors_per_s).toBeNull();
});
