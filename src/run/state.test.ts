import { expect, test } from "vitest";
import { judgeState, type StateFacts } from "./state.ts";

const healthy: StateFacts = {
  phase: "extracting",
  doing: "extracting",
  isWarm: true,
  ending: null,
  endingReason: null,
  stopping: false,
  skipped: 0,
  blocked: null,
  sinceCommitS: 4,
  expectedCommitS: 5,
  retryShare: 0,
  enginesDown: 0,
  engines: 2,
  spoolShare: 0.4,
  weakerVerify: null,
};

test.each<[string, Partial<StateFacts>, string, RegExp | null]>([
  ["is healthy", {}, "running", null],
  [
    "loads its model",
    { phase: "loading", doing: "loading the model: onnx-0 is loading" },
    "starting",
    /^loading the model: onnx-0 is loading$/,
  ],
  ["computes its first batches", { isWarm: false, doing: "computing" }, "starting", /computing/],
  ["uploads what an earlier session left", { phase: "draining", isWarm: false }, "running", null],
  [
    "cannot start for want of the disk",
    { isWarm: false, blocked: { reason: "full", action: "free" } },
    "blocked",
    /full/,
  ],
  ["has skipped rows at its end", { ending: "done", skipped: 2 }, "done_with_skips", /2 rows/],
  ["is done", { ending: "done" }, "done", null],
  ["failed", { ending: "failed", endingReason: "engine" }, "failed", /engine/],
  [
    "is being stopped while blocked",
    { stopping: true, blocked: { reason: "x", action: "y" } },
    "stopping",
    null,
  ],
  ["needs a person", { blocked: { reason: "credentials", action: "renew" } }, "blocked", /credentials/],
  [
    "has not committed for three times the expected time",
    { sinceCommitS: 301, expectedCommitS: 100 },
    "stalled",
    /301 s/,
  ],
  ["commits seldom, as expected", { sinceCommitS: 299, expectedCommitS: 100 }, "running", null],
  ["has been quiet for less than two minutes", { sinceCommitS: 119, expectedCommitS: 1 }, "running", null],
  ["retries more than one request in a hundred", { retryShare: 0.011 }, "degraded", /1.1 %/],
  ["has an engine down", { enginesDown: 1 }, "degraded", /1 of 2/],
  ["has a nearly full spool", { spoolShare: 0.95 }, "degraded", /90 %/],
  [
    "has a store that verifies less",
    { weakerVerify: "the store ignores create-only" },
    "degraded",
    /ignores/,
  ],
])("a run that %s is judged so", (_what, change, state, reason) => {
  const judged = judgeState({ ...healthy, ...change });
  expect(judged.state).toBe(state);
  if (reason) expect(judged.reason).toMatch(reason);
  if (change.blocked && state === "blocked") expect(judged.action).toBe(change.blocked.action);
});

test("before the first commit a long load is not a stall", () => {
  expect(judgeState({ ...healthy, sinceCommitS: null, expectedCommitS: null }).state).toBe("running");
});
