import { expect, test } from "vitest";
import { Rate } from "./rate.ts";

test("a rate counts the window only, and less than a window by its own length", () => {
  let nowMs = 0;
  const rate = new Rate(60, () => nowMs);
  expect(rate.perSecond()).toBe(0);
  rate.add(100);
  nowMs = 10_000;
  expect(rate.perSecond()).toBe(10);
  rate.add(500);
  nowMs = 65_000;
  expect(rate.perSecond()).toBeCloseTo(500 / 60);
  nowMs = 200_000;
  expect(rate.perSecond()).toBe(0);
});

test("what comes less often than once a window has a rate between two of it all the same", () => {
  let nowMs = 0;
  const rate = new Rate(60, () => nowMs);
  rate.add(0);
  for (nowMs = 100_000; nowMs <= 500_000; nowMs += 100_000) rate.add(1_000);
  for (nowMs = 500_000; nowMs < 600_000; nowMs += 7_000) {
    expect(rate.perSecond()).toBeGreaterThan(7);
    expect(rate.perSecond()).toBeLessThanOrEqual(10);
  }
});

test("what stops is 0 after three of its usual pauses, or after a window", () => {
  let nowMs = 0;
  const seldom = new Rate(60, () => nowMs);
  for (nowMs = 0; nowMs <= 400_000; nowMs += 100_000) seldom.add(1_000);
  nowMs = 701_000;
  expect(seldom.perSecond()).toBe(0);
  const often = new Rate(60, () => nowMs);
  for (nowMs = 0; nowMs < 300_000; nowMs += 500) often.add(1_000);
  expect(often.perSecond()).toBeCloseTo(2_000, -2);
  nowMs = 358_000;
  expect(often.perSecond()).toBeGreaterThan(0);
  nowMs = 361_000;
  expect(often.perSecond()).toBe(0);
});

test("the first of it is measured from when it was begun to be waited for", () => {
  let nowMs = 5_000;
  const rate = new Rate(60, () => nowMs);
  rate.add(0);
  nowMs = 25_000;
  rate.add(1_000);
  expect(rate.perSecond()).toBe(50);
});
