import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { idsCrc32c, refusedRows } from "./check-states.ts";
import type { ExtractSample, SampleStates } from "./protocol.ts";

const shape = { taps: 2, hidden: 4 };
const asked: ExtractSample[] = [
  { row: 7, ids: [1, 2, 3], offset: 0 },
  { row: 9, ids: [4], offset: 48 },
];
const good = ({ row, ids }: ExtractSample): SampleStates => ({
  row,
  bytes: ids.length * 16,
  tokens: ids.length,
  ids_crc32c: idsCrc32c(ids),
  crc32c: 1,
  stats: [
    { mean: 0, rms: 1, absmax: 2 },
    { mean: 0.1, rms: 1, absmax: 3 },
  ],
  finite: true,
  constant: false,
});
const reasonsOf = (change: Partial<SampleStates>) =>
  refusedRows(asked, [{ ...good(asked[0]!), ...change }, good(asked[1]!)], shape);

test("the CRC of ids is that of little-endian I32", () => {
  // RFC 3720 B.4: the bytes 00 01 02 .. 1f.
  const ids = Array.from({ length: 8 }, (_, i) => 0x03020100 + i * 0x04040404);
  expect(idsCrc32c(ids)).toBe(0x46dd794e);
});

describe("an answer", () => {
  test("that is as it should be is accepted, in any order", () => {
    expect(refusedRows(asked, asked.map(good), shape)).toEqual([]);
    expect(refusedRows(asked, asked.map(good).reverse(), shape)).toEqual([]);
  });

  test.each<[string, Partial<SampleStates>, RegExp]>([
    ["of other tokens", { tokens: 2 }, /expected states of 3 tokens, found 2/],
    ["of too few bytes", { bytes: 47 }, /expected 48 bytes of states, found 47/],
    ["for other ids", { ids_crc32c: idsCrc32c([1, 2, 4]) }, /other token ids/],
    ["with statistics of another number of taps", { stats: [] }, /statistics of 2 taps, found 0/],
    ["that is not finite", { finite: false }, /not finite/],
    [
      "whose statistics are not finite, whatever it says",
      {
        stats: [
          { mean: 0, rms: 1, absmax: 1 },
          { mean: null, rms: null, absmax: null },
        ],
      },
      /not finite/,
    ],
    [
      "that is all zero in one tap, whatever it says",
      {
        stats: [
          { mean: 0, rms: 1, absmax: 1 },
          { mean: 0, rms: 0, absmax: 0 },
        ],
      },
      /tap number 1 are all zero/,
    ],
    ["that is constant", { constant: true }, /all one value/],
    [
      "that is constant in one tap, whatever it says",
      {
        stats: [
          { mean: 0, rms: 1, absmax: 1 },
          { mean: -1.5, rms: 1.5, absmax: 1.5 },
        ],
      },
      /all one value/,
    ],
  ])("%s refuses that row alone", (_, change, reason) => {
    const refused = reasonsOf(change);
    expect(refused.map(({ row }) => row)).toEqual([7]);
    expect(refused[0]!.reason).toMatch(reason);
  });

  test("without a row refuses it", () => {
    expect(refusedRows(asked, [good(asked[1]!)], shape)).toEqual([{ row: 7, reason: "it was not answered" }]);
  });

  test("with two samples' states swapped refuses both, by their ids", () => {
    const [a, b] = asked.map(good) as [SampleStates, SampleStates];
    const swapped = [
      { ...b, row: a.row },
      { ...a, row: b.row },
    ];
    expect(refusedRows(asked, swapped, shape).map(({ row }) => row)).toEqual([7, 9]);
  });
});

test("one id changed, added or left out is always noticed", () => {
  const ids = fc.array(fc.nat(200_000), { minLength: 1, maxLength: 50 });
  fc.assert(
    fc.property(ids, ids, (one, other) => {
      const isSame = one.length === other.length && one.every((id, i) => id === other[i]);
      expect(idsCrc32c(one) === idsCrc32c(other)).toBe(isSame);
    }),
  );
});
