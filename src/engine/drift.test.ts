import { describe, expect, test } from "vitest";
import { DEFAULT_DRIFT_LIMITS, DriftWatch } from "./drift.ts";
import type { SampleStates } from "./protocol.ts";

const SEED = 20_240_607;

/** mulberry32 */
function randomFrom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

let nextRow = 0;
/** A sample with the scale of a healthy one (one large first token, as models have), times `scale`. */
function sample(
  random: () => number,
  tokens: number,
  scale = 1,
  more: Partial<SampleStates> = {},
): SampleStates {
  nextRow += 1;
  const rms = Math.sqrt(1 + 2500 / tokens) * (0.9 + 0.2 * random()) * scale;
  const stats = { mean: 0.02 * (random() - 0.5) * scale, rms, absmax: (150 + 50 * random()) * scale };
  return {
    row: nextRow,
    bytes: tokens * 64,
    tokens,
    ids_crc32c: nextRow,
    crc32c: Math.floor(random() * 2 ** 32),
    stats: [stats, { ...stats, rms: rms * 3 }],
    finite: true,
    constant: false,
    ...more,
  };
}
const pack = (random: () => number, scale = 1) => {
  // Samples of one pack are of like length; packs differ.
  const tokens = Math.floor(8 * 2 ** (random() * 7));
  return Array.from({ length: 4 }, () => sample(random, tokens, scale));
};

function warm(): { watch: DriftWatch; random: () => number } {
  const random = randomFrom(SEED);
  const watch = new DriftWatch({ taps: 2, hidden: 16 });
  for (let i = 0; i < 200; i += 1) expect(watch.look(pack(random))).toEqual([]);
  return { watch, random };
}

describe(`packs against the run so far (seed ${SEED})`, () => {
  test("healthy packs of all lengths raise nothing", () => {
    const { watch, random } = warm();
    for (let i = 0; i < 1000; i += 1) expect(watch.look(pack(random))).toEqual([]);
  });

  test.each([100, 0.005])(
    "a pack whose states are %d times the usual is a jump, and is not learned from",
    (scale) => {
      const { watch, random } = warm();
      for (let i = 0; i < 300; i += 1) {
        const events = watch.look(pack(random, scale));
        expect(events.map(({ kind }) => kind)).toContain("jump");
        expect(events[0]!.message).toMatch(/tap number 0: (rms|absmax) of the pack is .* in the run so far/);
      }
      expect(watch.look(pack(random))).toEqual([]);
    },
  );

  test("a mean that moved by more than the RMS is a jump", () => {
    const { watch, random } = warm();
    const moved = pack(random).map((one) => ({
      ...one,
      stats: one.stats.map((stats) => ({ ...stats, mean: stats.rms! * 0.99 + 20, rms: stats.rms! + 20.5 })),
    }));
    expect(
      watch
        .look(moved)
        .map(({ message }) => message)
        .join(),
    ).toContain("mean of the pack");
  });

  test("nothing is a jump before there is anything to compare with", () => {
    const random = randomFrom(SEED);
    const watch = new DriftWatch({ taps: 2, hidden: 16 });
    for (let i = 0; i < DEFAULT_DRIFT_LIMITS.warmUpPacks; i += 1) {
      expect(watch.look(pack(random, i % 2 === 0 ? 1 : 1000))).toEqual([]);
    }
  });
});

test("states that are the same bytes for other ids are told, with both rows; the same row again is not", () => {
  const { watch, random } = warm();
  const [first, second] = [sample(random, 20), sample(random, 20)];
  expect(watch.look([first])).toEqual([]);
  expect(watch.look([{ ...first, row: 5 }])).toEqual([]);
  const events = watch.look([{ ...second, crc32c: first.crc32c }]);
  expect(events).toMatchObject([{ kind: "repeated", rows: [first.row, second.row] }]);
});

test("a pack of nearly one value is told, though no sample says that it is constant", () => {
  const { watch, random } = warm();
  const flat = pack(random).map((one) => ({
    ...one,
    stats: one.stats.map(() => ({ mean: 1.5, rms: 1.5, absmax: 1.5 })),
  }));
  expect(watch.look(flat).map(({ kind }) => kind)).toEqual(["constant", "constant"]);
});

test("an empty pack (all its rows skipped) is nothing", () => {
  expect(new DriftWatch({ taps: 2, hidden: 16 }).look([])).toEqual([]);
});
