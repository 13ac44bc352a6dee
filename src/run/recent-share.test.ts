import { expect, test } from "vitest";
import { RecentShare } from "./recent-share.ts";

test("a bad hour is forgotten five minutes after it, and a bad minute is seen at once", () => {
  const retries = new RecentShare();
  const counts = { all: 0, part: 0 };
  let atS = 1_000;
  const pass = (seconds: number, part: number) => {
    for (let s = 0; s < seconds; s += 1) {
      atS += 1;
      counts.all += 10;
      counts.part += part;
      retries.look(atS, counts);
    }
  };
  pass(3_600, 5);
  expect(retries.share()).toBeCloseTo(0.5);
  pass(150, 0);
  expect(retries.share()).toBeCloseTo(0.25, 1);
  pass(160, 0);
  expect(retries.share()).toBe(0);
  pass(60, 5);
  expect(retries.share()).toBeCloseTo(0.1, 1);
});

test("a handful tells nothing", () => {
  const retries = new RecentShare();
  retries.look(1, { all: 99, part: 50 });
  expect(retries.share()).toBeNull();
  retries.look(2, { all: 100, part: 50 });
  expect(retries.share()).toBe(0.5);
});
