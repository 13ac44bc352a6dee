import { expect, test } from "vitest";
import { chooseCanary, DEFAULT_CANARY, relativeError } from "./canary.ts";

const shape = { taps: 2, hidden: 16 };
const states = (tokens: number, value: (i: number) => number) => {
  const bytes = Buffer.alloc(tokens * 64);
  const float = Buffer.alloc(4);
  for (let i = 0; i < tokens * 32; i += 1) {
    float.writeFloatLE(value(i));
    bytes.writeUInt16LE(float.readUInt32LE() >>> 16, 2 * i);
  }
  return bytes;
};
const one = states(9, (i) => Math.sin(i));

test("the same states differ by nothing, rounding by little, another sample's by far", () => {
  expect(relativeError(one, one, shape)).toBe(0);
  const rounded = relativeError(
    one,
    states(9, (i) => Math.sin(i) * 1.01),
    shape,
  );
  expect(rounded).toBeGreaterThan(0);
  expect(rounded).toBeLessThan(DEFAULT_CANARY.tolerance / 3);
  expect(
    relativeError(
      one,
      states(9, (i) => Math.cos(i * 1.7)),
      shape,
    ),
  ).toBeGreaterThan(1);
});

test("one token that is wholly off (an expert that flipped) is not a mismatch; half of them are", () => {
  const off = (tokens: number) => states(9, (i) => (i < tokens * 32 ? Math.cos(i * 1.7) : Math.sin(i)));
  expect(relativeError(one, off(1), shape)).toBe(0);
  expect(relativeError(one, off(5), shape)).toBeGreaterThan(DEFAULT_CANARY.tolerance);
});

test("states of another length, or not finite, are no match", () => {
  expect(relativeError(one, one.subarray(64), shape) <= DEFAULT_CANARY.tolerance).toBe(false);
  expect(
    relativeError(
      one,
      states(9, () => Number.NaN),
      shape,
    ) <= DEFAULT_CANARY.tolerance,
  ).toBe(false);
});

test("the shortest sample that tells anything is chosen", () => {
  const sample = (row: number, tokens: number) => ({
    row,
    ids: new Array<number>(tokens).fill(1),
    offset: 0,
  });
  expect(chooseCanary([sample(1, 2), sample(2, 50), sample(3, 7), sample(4, 7)])?.row).toBe(3);
  expect(chooseCanary([sample(1, 2), sample(2, 5_000)])).toBeNull();
});
