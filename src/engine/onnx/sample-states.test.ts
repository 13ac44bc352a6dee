import { describe, expect, it } from "vitest";
import { crc32c } from "../../base/checksum.ts";
import { roundToBf16, SampleSummary } from "./sample-states.ts";
import type { Forward } from "./session.ts";

const TAPS = 2;
const HIDDEN = 4;

/** A forward whose states are `values`, [tokens, taps, hidden], with the statistics that the graph would give. */
function forwardOf(values: number[]): Forward {
  const tokens = values.length / (TAPS * HIDDEN);
  const rows = Array.from({ length: tokens * TAPS }, (_, j) => values.slice(j * HIDDEN, (j + 1) * HIDDEN));
  return {
    tokens,
    states: Uint16Array.from(
      values,
      (value) => new Uint32Array(Float32Array.of(roundToBf16(value)).buffer)[0]! >>> 16,
    ),
    mean: Float32Array.from(rows, (row) => row.reduce((sum, x) => sum + x, 0) / HIDDEN),
    sumSquares: Float32Array.from(rows, (row) => row.reduce((sum, x) => sum + x * x, 0)),
    min: Float32Array.from(rows, (row) => Math.min(...row)),
    max: Float32Array.from(rows, (row) => Math.max(...row)),
  };
}

function answerFor(values: number[]) {
  const forward = forwardOf(values);
  const summary = new SampleSummary(TAPS, HIDDEN);
  summary.add(new Int32Array(forward.tokens), { forward, startRow: 0, endRow: forward.tokens });
  return summary.answer(0);
}

const GOOD = [1, 2, 3, -4, 0, 0, 0, 8, 1, 1, 1, 1, 2, 0, 0, 0];

describe("a sample's answer", () => {
  it("has each tap's mean, rms and largest magnitude over all its tokens", () => {
    const { stats, finite, constant } = answerFor(GOOD);
    expect(stats).toEqual([
      { mean: (2 + 4) / 8, rms: Math.sqrt((30 + 4) / 8), absmax: 4 },
      { mean: (8 + 2) / 8, rms: Math.sqrt((64 + 4) / 8), absmax: 8 },
    ]);
    expect({ finite, constant }).toEqual({ finite: true, constant: false });
  });

  it("is the same whether it came whole or in chunks, to the CRC", () => {
    const forward = forwardOf(GOOD);
    const chunked = new SampleSummary(TAPS, HIDDEN);
    const pieces = [0, 1].map((row) =>
      Buffer.from(chunked.add(Int32Array.of(row + 7), { forward, startRow: row, endRow: row + 1 })),
    );
    const whole = new SampleSummary(TAPS, HIDDEN);
    whole.add(Int32Array.of(7, 8), { forward, startRow: 0, endRow: 2 });
    expect(chunked.answer(5)).toEqual(whole.answer(5));
    expect(whole.answer(5)).toMatchObject({
      row: 5,
      tokens: 2,
      bytes: 2 * TAPS * HIDDEN * 2,
      crc32c: crc32c(Buffer.concat(pieces)),
      ids_crc32c: crc32c(Buffer.from([7, 0, 0, 0, 8, 0, 0, 0])),
    });
  });

  it.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY, 3.4e38])(
    "is not finite with %d anywhere, even where only bf16 has no room for it",
    (bad) => {
      for (let at = 0; at < GOOD.length; at += 1) {
        const values = GOOD.with(at, bad);
        expect(answerFor(values).finite, `at ${at}`).toBe(false);
        expect(JSON.stringify(answerFor(values))).not.toContain("NaN");
      }
    },
  );

  it("is constant where one tap is one value in bf16, and not where a single number differs", () => {
    const zeros = [...new Array(4).fill(0), 0, 0, 0, 8, ...new Array(4).fill(0), 2, 0, 0, 0];
    expect(answerFor(zeros).constant).toBe(true);
    expect(answerFor(zeros.map((x) => (x === 0 ? 1 + 1e-4 : x))).constant).toBe(true);
    expect(answerFor(zeros.with(10, 0.5)).constant).toBe(false);
  });
});

it("rounding to bf16 goes to the nearest, ties to even", () => {
  expect(
    [1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, -1 - 2 ** -8, 3.4e38].map(roundToBf16),
  ).toEqual([1, 1 + 2 ** -6, 1 + 2 ** -7, -1, Number.POSITIVE_INFINITY]);
});
