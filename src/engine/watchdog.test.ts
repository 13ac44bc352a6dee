import { expect, test } from "vitest";
import { DEFAULT_LIMITS, Pace } from "./watchdog.ts";

const forward = (pace: Pace, tokens: number, ms: number) => {
  pace.did(tokens);
  pace.closeInterval(ms);
};

test("before the first forward the limit is the long one; afterwards never below the floor", () => {
  const pace = new Pace(DEFAULT_LIMITS);
  expect(pace.limitMs(100)).toBe(15 * 60_000);
  forward(pace, 8_000, 1_000);
  expect(pace.limitMs(100)).toBe(60_000);
});

test("the limit is 20 times what a forward takes by the running median", () => {
  const pace = new Pace(DEFAULT_LIMITS);
  for (const ms of [10_000, 10_000, 10_000, 500_000, 10_000]) forward(pace, 1_000, ms);
  expect(pace.limitMs(1)).toBe(20 * 10_000);
});

test("a sample longer than any forward so far is given the time it needs", () => {
  const pace = new Pace(DEFAULT_LIMITS);
  forward(pace, 1_000, 10_000);
  expect(pace.limitMs(5_000)).toBe(20 * 50_000);
});

test("one forward for several requests is one interval, whoever reports first", () => {
  const pace = new Pace(DEFAULT_LIMITS);
  for (let i = 0; i < 40; i += 1) {
    // A younger request reports 3,000 of the forward's tokens, then the oldest its 1,000.
    pace.did(3_000);
    forward(pace, 1_000, 8_000);
  }
  expect(pace.limitMs(1)).toBe(20 * 8_000);
});
