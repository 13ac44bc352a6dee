import { expect, test } from "vitest";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import { History } from "../../src/monitor/history.ts";
import type { RunEvent } from "../../src/run/status.ts";
import { withGaps } from "./series.ts";
import { mergeEvents, stageWindow } from "./window.ts";

const NOW_S = 1_764_547_200;

function columnsAt(times: number[]) {
  const history = new History();
  const run = scriptedRun({ nowMs: () => NOW_S * 1_000 });
  const filled = new History();
  run.fillHistory(filled, 0.01);
  const [sample] = filled.points();
  history.restore(times.map((t) => ({ ...sample!, t })));
  return history.since(0);
}

test("a line breaks off where nobody measured for more than 15 s", () => {
  const times = [...Array(60).keys()].map((i) => NOW_S - 120 + i + (i >= 30 ? 20 : 0));
  const columns = withGaps(columnsAt(times), NOW_S);
  expect(columns.t.length).toBe(61);
  expect(columns.tokens_per_s[30]).toBeNull();
  expect(columns.t[30]).toBeGreaterThan(columns.t[29]!);
  expect(columns.t[30]).toBeLessThan(columns.t[31]!);
  expect(columns.tokens_per_s.filter((value) => value === null)).toHaveLength(1);
});

test("old points, ten seconds apart by design, are one line", () => {
  const times = [...Array(100).keys()].map((i) => NOW_S - 4_000 + i * 10);
  expect(withGaps(columnsAt(times), NOW_S).t.length).toBe(100);
});

test("no points at all are no gap", () => {
  expect(withGaps(columnsAt([]), NOW_S).t).toEqual([]);
});

test("stage shares are of the window, not of the session, once there is a window", () => {
  let nowMs = NOW_S * 1_000;
  let busy = 0;
  const run = scriptedRun({
    nowMs: () => nowMs,
    edit: (document) => ({
      ...document,
      stages: document.stages.map((stage) => ({ ...stage, busy, starved: 1_000, blocked: 0 })),
    }),
  });
  const before = run.snapshot();
  expect(stageWindow(before, before)[0]).toMatchObject({ busy: 0, starved: 1 });
  nowMs += 10_000;
  busy = 10;
  expect(stageWindow(before, run.snapshot())[0]).toMatchObject({ name: "compute", busy: 1, starved: 0 });
});

test("events are kept once each, oldest first, whichever way the tail is sorted", () => {
  const event = (s: number): RunEvent => ({
    at: new Date((NOW_S + s) * 1_000).toISOString(),
    level: "info",
    event: "a.b",
    fields: { s },
  });
  const known = [event(1), event(2)];
  expect(mergeEvents(known, [event(3), event(2), event(1)], 10)).toEqual([event(1), event(2), event(3)]);
  expect(mergeEvents(known, [event(2), event(3)], 2)).toEqual([event(2), event(3)]);
  expect(mergeEvents(known, [event(1), event(2)], 10)).toBe(known);
});
