import { describe, expect, test } from "vitest";
import { BF16_FLOATS, bf16OfFloat16, bf16OfFloat32 } from "./bf16.ts";
import { StatesStats } from "./states-stats.ts";

function bf16(floats: number[]): Uint16Array {
  const into = new Uint16Array(floats.length);
  bf16OfFloat32(new Uint32Array(Float32Array.from(floats).buffer), into);
  return into;
}

describe("StatesStats", () => {
  test("counts each tap by itself, over pieces, also where hidden is no multiple of four", () => {
    const [tokens, taps, hidden] = [5, 3, 7];
    const values = bf16(
      Array.from({ length: tokens * taps * hidden }, (_, i) => Math.sin(i * 1.7) * (1 + (i % 11))),
    );
    const stats = new StatesStats(taps, hidden);
    stats.add(values.subarray(0, 2 * taps * hidden));
    stats.add(values.subarray(2 * taps * hidden));
    const result = stats.result();
    for (let tap = 0; tap < taps; tap += 1) {
      const own = Array.from(values, (bits) => BF16_FLOATS[bits]!).filter(
        (_, i) => Math.floor(i / hidden) % taps === tap,
      );
      const told = result.stats[tap]!;
      expect(told.mean).toBeCloseTo(own.reduce((sum, x) => sum + x, 0) / own.length, 10);
      expect(told.rms).toBeCloseTo(Math.sqrt(own.reduce((sum, x) => sum + x * x, 0) / own.length), 10);
      expect(told.absmax).toBe(Math.max(...own.map(Math.abs)));
    }
    expect(result).toMatchObject({ finite: true, constant: false });
  });

  test.each([Number.NaN, Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY])(
    "one %d anywhere shows",
    (value) => {
      for (let at = 0; at < 18; at += 1) {
        const stats = new StatesStats(2, 9);
        stats.add(bf16(Array.from({ length: 18 }, (_, i) => (i === at ? value : i))));
        expect(stats.result().finite).toBe(false);
        expect(stats.result().stats[at < 9 ? 0 : 1]!.absmax).toBeNull();
      }
    },
  );

  test("a tap of one value shows, one different number anywhere does not", () => {
    const stats = new StatesStats(2, 6);
    stats.add(bf16([1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7]));
    expect(stats.result().constant).toBe(true);
    for (let at = 0; at < 6; at += 1) {
      const other = new StatesStats(1, 6);
      other.add(bf16(Array.from({ length: 6 }, (_, i) => (i === at ? 8 : 7))));
      expect(other.result().constant).toBe(false);
    }
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
