import { describe, expect, test } from "vitest";
import { BF16_FLOATS, bf16OfFloat16, bf16OfFloat32 } from "./bf16.ts";
import { StatesStats } from "./states-stats.ts";

function bf16(floats: number[]): Uint16Array {
  const into = new Uint16Array(floats.length);
  bf16OfFloat32(new Uint32Array(Float32Array.from(floats).buffer), into);
  return into;
}

/** The statistics of `values` [tokens, taps, hidden], which come by `pieces` tokens. */
function statsOf(
  values: Uint16Array,
  { taps, hidden, pieces }: { taps: number; hidden: number; pieces: number[] },
): ReturnType<StatesStats["result"]> {
  const stats = new StatesStats(values.byteLength, taps);
  // A sample before it leaves nothing behind.
  stats.begin(taps, hidden);
  stats.piece(taps * hidden).fill(0x7fc0);
  stats.add(1);
  stats.begin(taps, hidden);
  let start = 0;
  for (const tokens of pieces) {
    const end = start + tokens * taps * hidden;
    stats.piece(end - start).set(values.subarray(start, end));
    stats.add(tokens);
    start = end;
  }
  return stats.result();
}

describe("StatesStats", () => {
  test.each([7, 8, 9, 32, 100])("counts each tap by itself, over pieces, of %d numbers a token", (hidden) => {
    const [tokens, taps] = [5, 3];
    const values = bf16(
      Array.from({ length: tokens * taps * hidden }, (_, i) => Math.sin(i * 1.7) * (1 + (i % 11))),
    );
    const result = statsOf(values, { taps, hidden, pieces: [2, 1, 2] });
    for (let tap = 0; tap < taps; tap += 1) {
      const own = Array.from(values, (bits) => BF16_FLOATS[bits]!).filter(
        (_, i) => Math.floor(i / hidden) % taps === tap,
      );
      const told = result.stats[tap]!;
      expect(told.mean).toBeCloseTo(own.reduce((sum, x) => sum + x, 0) / own.length, 6);
      expect(told.rms).toBeCloseTo(Math.sqrt(own.reduce((sum, x) => sum + x * x, 0) / own.length), 6);
      expect(told.absmax).toBe(Math.max(...own.map(Math.abs)));
    }
    expect(result).toMatchObject({ finite: true, constant: false });
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    "one %d anywhere shows",
    (value) => {
      for (let at = 0; at < 18; at += 1) {
        const values = bf16(Array.from({ length: 18 }, (_, i) => (i === at ? value : i)));
        const result = statsOf(values, { taps: 2, hidden: 9, pieces: [1] });
        expect(result.finite).toBe(false);
        expect(result.stats[at < 9 ? 0 : 1]!.absmax).toBeNull();
        expect(result.stats[at < 9 ? 1 : 0]!.absmax).not.toBeNull();
      }
    },
  );

  test("a tap of one value shows, one different number anywhere does not", () => {
    const hidden = 18;
    const counting = Array.from({ length: hidden }, (_, i) => i);
    const sevens = Array<number>(hidden).fill(7);
    const shape = { taps: 2, hidden, pieces: [1, 1] };
    const constant = [...counting, ...sevens, ...counting, ...sevens];
    expect(statsOf(bf16(constant), shape).constant).toBe(true);
    for (let at = 0; at < hidden; at += 1) {
      for (const start of [hidden, 3 * hidden]) {
        const other = constant.with(start + at, 8);
        expect(statsOf(bf16(other), shape).constant).toBe(false);
      }
    }
  });

  test("rows of a real width in pieces of many tokens are what a plain sum gives", () => {
    const [tokens, taps, hidden] = [40, 5, 5_120];
    const values = Uint16Array.from(
      { length: tokens * taps * hidden },
      (_, i) => 0x3f80 | (Math.imul(i, 2_654_435_761) >>> 25) | (i % 3 === 0 ? 0x8000 : 0),
    );
    const sums = new Float64Array(taps);
    values.forEach((bits, i) => {
      sums[Math.floor(i / hidden) % taps]! += BF16_FLOATS[bits]!;
    });
    const { stats } = statsOf(values, { taps, hidden, pieces: [13, 27] });
    stats.forEach(({ mean }, tap) => {
      expect(mean).toBeCloseTo(sums[tap]! / (tokens * hidden), 5);
    });
  });
});

describe("to bf16", () => {
  test("f32 goes to the nearest, ties to even; what is not finite stays so", () => {
    const words = Uint32Array.from([
      0x3f800000, 0x3f807fff, 0x3f808000, 0x3f808001, 0x3f818000, 0x7f7fffff, 0x7f800000, 0x7f800001,
      0xff800000, 0x80000000,
    ]);
    const into = new Uint16Array(words.length);
    bf16OfFloat32(words, into);
    expect([...into]).toEqual([
      0x3f80, 0x3f80, 0x3f80, 0x3f81, 0x3f82, 0x7f80, 0x7f80, 0x7fc0, 0xff80, 0x8000,
    ]);
  });

  test("f16: normal, subnormal, zero, infinite and NaN", () => {
    const halves = Uint16Array.from([0x3c00, 0xc000, 0x0001, 0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x7bff]);
    const into = new Uint16Array(halves.length);
    bf16OfFloat16(halves, into);
    const floats = Array.from(into, (bits) => BF16_FLOATS[bits]!);
    expect(floats).toEqual([
      1,
      -2,
      2 ** -24,
      0,
      -0,
      Number.POSITIVE_INFINITY,
      Number.NEGATIVE_INFINITY,
      Number.NaN,
      65_536,
    ]);
  });
});
