import { expect, test } from "vitest";
import { lastLines } from "./engine-exit.ts";

test("the last lines of stderr are few, without the empty ones", () => {
  const tail = Array.from({ length: 200 }, (_, line) => (line % 2 === 0 ? `line ${line}` : " "));
  expect(lastLines(tail)).toEqual(Array.from({ length: 10 }, (_, i) => `line ${180 + 2 * i}`));
  expect(lastLines([])).toEqual([]);
});

test("what they take is bounded in bytes, and the last is there in any case, in whole characters", () => {
  const tail = ["x".repeat(1_000), "y".repeat(900), "z".repeat(500)];
  expect(lastLines(tail)).toEqual(tail.slice(1));
  expect(lastLines(["before", "漢".repeat(1_000)])).toEqual(["漢".repeat(500)]);
  expect(lastLines([`a${"漢".repeat(1_000)}`])).toEqual([`a${"漢".repeat(499)}`]);
});
