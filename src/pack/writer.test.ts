import { closeSync, ftruncateSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { expect, test } from "vitest";
import { anyBatch, anyShape, makePack, packFacts, tapNumbers } from "../../test/support/packs.ts";
import { crc32c } from "../base/checksum.ts";
import { writeAllSync } from "../base/publish.ts";
import { parseHeader } from "../base/safetensors.ts";
import { packLayout, SKIP_REASON_CHARS_MAX, sampleBytes, sampleLayoutOf } from "./layout.ts";
import { metadataBytesOf, packMetadata } from "./metadata.ts";
import { checkPackHeader, checkSampleCrc, decodeSample, readPackHeader } from "./reader.ts";
import { finishPack, packPieces } from "./writer.ts";

const shape = { taps: 2, hidden: 8, hasLossMask: true, metadataBytes: metadataBytesOf(tapNumbers(2)) };

const packs = fc
  .tuple(anyBatch, anyShape, fc.array(fc.boolean(), { minLength: 12, maxLength: 12 }), fc.string())
  .map(([batch, packShape, skipped, reason]) => {
    const skips = batch.samples.filter((_, i) => skipped[i]).map(({ row }) => [row, reason] as const);
    return { batch, skips: new Map(skips), ...makePack(batch, packShape, new Map(skips)) };
  });

test("a layout has no holes, and its data begins at a multiple of 64", () => {
  fc.assert(
    fc.property(anyBatch, anyShape, (batch, anyOne) => {
      const layout = packLayout(batch, anyOne);
      let at = layout.headerBytes;
      expect(at % 64).toBe(0);
      for (const sample of layout.samples) {
        expect(sample.startByte).toBe(at);
        expect(sample.idsByte).toBe(at);
        expect(sample.statesByte % 8).toBe(0);
        expect(sample.endByte - sample.statesByte).toBe(sample.statesBytes);
        expect(sample.endByte - at).toBe(sampleBytes(sample.tokens, anyOne));
        at = sample.endByte;
      }
      expect(layout.bytes).toBe(at);
    }),
  );
});

test("any pack is safetensors of exactly its planned size, and reads back as what went in", () => {
  fc.assert(
    fc.property(packs, ({ batch, skips, bytes, layout, states, contents }) => {
      expect(bytes.length).toBe(layout.bytes);
      expect(parseHeader(bytes, "pack", bytes.length).dataByte).toBe(layout.headerBytes);
      const header = readPackHeader(bytes, "pack", bytes.length);
      expect(header.batch).toBe(batch.index);
      expect(checkPackHeader(header, layout, contents.facts.identity)).toEqual({ kind: "same" });
      for (const [at, sample] of header.samples.entries()) {
        const range = bytes.subarray(sample.startByte, sample.endByte);
        checkSampleCrc(range, sample, "pack");
        const decoded = decodeSample(range, layout.samples[at]!, "pack");
        if (skips.has(sample.row)) {
          expect(decoded).toEqual({ kind: "skipped", row: sample.row });
          expect(sample.skipped?.length).toBeLessThanOrEqual(SKIP_REASON_CHARS_MAX);
        } else {
          expect(sample.skipped).toBe(null);
          const outcome = contents.outcomes[at]!;
          if (decoded.kind !== "sample" || outcome.kind !== "done") throw new Error("expected a sample");
          expect(decoded.ids).toEqual(outcome.ids);
          expect(decoded.lossMask).toEqual(outcome.lossMask);
          expect(Buffer.from(decoded.states)).toEqual(Buffer.from(states.get(sample.row)!));
        }
      }
    }),
  );
});

test("the CRC of the whole object is put together from parts without reading the states", () => {
  fc.assert(
    fc.property(packs, ({ contents, bytes }) => {
      expect(packPieces(contents).crc32c).toBe(crc32c(bytes));
    }),
  );
});

test("a skipped sample leaves every other sample's bytes where they were", () => {
  const batch = { index: 7, samples: [5, 6, 7].map((row) => ({ row, tokens: 9 })) };
  const whole = makePack(batch, shape);
  const holed = makePack(batch, shape, new Map([[6, "nonfinite in two engines"]]));
  expect(holed.bytes.length).toBe(whole.bytes.length);
  for (const row of [5, 7]) {
    const { startByte, endByte } = sampleLayoutOf(batch, row, shape)!;
    expect(holed.bytes.subarray(startByte, endByte)).toEqual(whole.bytes.subarray(startByte, endByte));
  }
  expect(readPackHeader(holed.bytes, "pack").samples[1]!.skipped).toBe("nonfinite in two engines");
});

test("the header's bound holds when every sample is skipped with the longest reason", () => {
  const samples = [0, 9, 10, 99_999, 4_294_967_295].map((row) => ({ row, tokens: 1 }));
  const batch = { index: 4_294_967_295, samples };
  const reason = `"\\;é${"x".repeat(100)}`;
  for (const hasLossMask of [true, false]) {
    const skips = new Map(samples.map(({ row }) => [row, reason]));
    const { bytes, layout } = makePack(batch, { ...shape, hasLossMask }, skips);
    const header = readPackHeader(bytes, "pack", layout.bytes);
    expect(header.samples.map((s) => s.skipped)).toEqual(samples.map(() => `'/, ${"x".repeat(44)}`));
  }
});

test("the header's bound is exact: only rounding and what skips and long numbers would need is padding", () => {
  const samples = Array.from({ length: 500 }, (_, i) => ({
    row: 7 ** (i % 11) + i,
    tokens: 1 + ((i * 37) % 1_200),
  }));
  for (const hasLossMask of [true, false]) {
    const facts = packFacts(2);
    const metadataBytes = JSON.stringify(packMetadata(facts)).length - 2;
    const { bytes, layout } = makePack({ index: 1, samples }, { ...shape, hasLossMask, metadataBytes });
    const text = bytes.subarray(8, layout.headerBytes).toString();
    const padding = text.length - text.trimEnd().length;
    expect(padding).toBeLessThan(64 + ',"skipped":""'.length + "9999999999".length);
  }
});

test("a batch's size does not depend on its number", () => {
  const samples = [{ row: 3, tokens: 40 }];
  const sizes = [0, 9, 4_294_967_295].map((index) => packLayout({ index, samples }, shape).bytes);
  expect(new Set(sizes).size).toBe(1);
});

test("finishPack overwrites what a failed engine left in a skipped sample's place", () => {
  const batch = { index: 1, samples: [4, 2].map((row) => ({ row, tokens: 300 })) };
  const wide = { ...shape, hidden: 1024 };
  const made = makePack(batch, wide, new Map([[4, "oom"]]));
  const directory = mkdtempSync(join(tmpdir(), "forebay-pack-"));
  try {
    const path = join(directory, "00000001.0.part");
    const fd = openSync(path, "wx+");
    ftruncateSync(fd, made.layout.bytes);
    closeSync(fd);
    const garbage = Buffer.alloc(made.layout.bytes, 0x77);
    const { statesByte, endByte } = made.layout.samples[1]!;
    garbage.set(made.bytes.subarray(statesByte, endByte), statesByte);
    const out = openSync(path, "r+");
    writeAllSync(out, garbage, 0);
    finishPack(out, made.contents);
    closeSync(out);
    expect(readFileSync(path).equals(made.bytes)).toBe(true);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test("contents that do not fit the layout are a bug and said to be one", () => {
  const { contents } = makePack({ index: 0, samples: [{ row: 1, tokens: 3 }] }, shape);
  const done = contents.outcomes[0]!;
  if (done.kind !== "done") throw new Error("expected a finished sample");
  for (const outcomes of [
    [],
    [{ ...done, ids: new Int32Array(2) }],
    [{ ...done, ids: Int32Array.of(1, -1, 2) }],
    [{ ...done, lossMask: null }],
    [{ ...done, lossMask: new Uint8Array(4) }],
  ]) {
    expect(() => packPieces({ ...contents, outcomes })).toThrow();
  }
});
