import fc from "fast-check";
import { expect, test } from "vitest";
import { seededRandom, shuffle } from "./random.ts";

test("every value below n is as likely as any other", () => {
  const random = seededRandom(42);
  for (const n of [2, 7, 1_000]) {
    const counts = new Uint32Array(n);
    for (let i = 0; i < 100 * n; i += 1) counts[random(n)]! += 1;
    const chiSquare = counts.reduce((sum, count) => sum + (count - 100) ** 2 / 100, 0);
    // Six standard deviations of a chi-square of n - 1 degrees.
    expect(Math.abs(chiSquare - (n - 1))).toBeLessThan(6 * Math.sqrt(2 * n));
  }
});

test("seeds that differ in any bit, the high ones included, give other sequences", () => {
  const seeds = [0, 1, 2, 2 ** 31, 2 ** 32, 2 ** 32 + 1, 2 ** 52, Number.MAX_SAFE_INTEGER];
  const sequences = seeds.map((seed) => {
    const random = seededRandom(seed);
    return Array.from({ length: 4 }, () => random(2 ** 32)).join();
  });
  expect(new Set(sequences).size).toBe(seeds.length);
});

test("a sequence never changes: plans of older versions must come out the same", () => {
  const random = seededRandom(2 ** 40 + 7);
  expect([random(2 ** 32), random(1_000_000), random(10), random(1)]).toEqual([2_292_767_246, 146_070, 9, 0]);
});

test("a shuffle moves values within its range only, and loses none", () => {
  fc.assert(
    fc.property(
      fc.uint32Array({ maxLength: 60 }),
      fc.nat(60),
      fc.nat(60),
      fc.maxSafeNat(),
      (values, a, b, seed) => {
        const [start, end] = [Math.min(a, b, values.length), Math.min(Math.max(a, b), values.length)];
        const shuffled = values.slice();
        shuffle(shuffled, seededRandom(seed), start, end);
        expect(shuffled.subarray(0, start)).toEqual(values.subarray(0, start));
        expect(shuffled.subarray(end)).toEqual(values.subarray(end));
        expect(shuffled.slice().sort()).toEqual(values.slice().sort());
      },
    ),
  );
});
