import { expect, test } from "vitest";
import { compareTap, describeAgreement } from "./against.ts";

const shape = { taps: 2, hidden: 64 };
const TOKENS = 9;

/** bf16 bits [tokens, taps, hidden] of some smooth numbers, each from `of(token, tap, i)`. */
function states(of: (token: number, tap: number, i: number) => number): Uint16Array {
  const values = Array.from({ length: TOKENS * shape.taps * shape.hidden }, (_, at) =>
    of(
      Math.floor(at / (shape.taps * shape.hidden)),
      Math.floor(at / shape.hidden) % shape.taps,
      at % shape.hidden,
    ),
  );
  return Uint16Array.from(new Uint32Array(Float32Array.from(values).buffer), (bits) => bits >>> 16);
}

const wave = (token: number, tap: number, i: number) => Math.sin(1 + token * 3.1 + tap * 1.7 + i * 0.37);
const own = states(wave);
const slots = [0, 1].map((slot) => ({ tap: 5 + slot, slot, shape }));

test("two engines that round differently agree; one of them wrong in one tap is told for that tap only", () => {
  const rounded = states((token, tap, i) => wave(token, tap, i) * (1 + 2 ** -9 * (i % 2)));
  expect(slots.map((slot) => compareTap(own, rounded, slot).ok)).toEqual([true, true]);
  const wrong = states((token, tap, i) => wave(token, tap, i) * (tap === 1 ? 1.1 : 1));
  expect(slots.map((slot) => compareTap(own, wrong, slot))).toMatchObject([
    { tap: 5, ok: true, medianError: 0, worstError: 0 },
    { tap: 6, ok: false },
  ]);
  const text = describeAgreement(slots.map((slot) => compareTap(own, wrong, slot)));
  expect(text).toContain("block 5: ok");
  expect(text).toContain("block 6: FAILED");
});

test("a single token that a router sent elsewhere is shown, and no disagreement", () => {
  const routed = states((token, tap, i) => (token === 4 ? -1 : 1) * wave(token, tap, i));
  expect(compareTap(own, routed, slots[0]!)).toMatchObject({ ok: true, medianError: 0 });
  expect(compareTap(own, routed, slots[0]!).worstError).toBeCloseTo(2, 2);
});

test("numbers that are not finite never agree", () => {
  const nan = states((token, tap, i) => (token === 0 && i === 3 ? Number.NaN : wave(token, tap, i)));
  expect(compareTap(own, nan, slots[0]!)).toMatchObject({ ok: false });
});
