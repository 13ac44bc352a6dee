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
