import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { anyBatch, anyShape, makePack } from "../../test/support/packs.ts";
import { crc32c } from "../base/checksum.ts";
import { checkPack, PackChecker } from "./check.ts";

const IDENTITY = "ab".repeat(32);

/** Cuts bytes into pieces of the given lengths, used in turn. */
function* cut(bytes: Buffer, lengths: number[]): Iterable<Buffer> {
  for (let at = 0, turn = 0; at < bytes.length; turn += 1) {
    const endByte = at + lengths[turn % lengths.length]!;
    // A copy that is gone afterwards: the checker must keep no view of it.
    const piece = Buffer.from(bytes.subarray(at, endByte));
    yield piece;
    piece.fill(0xff);
    at = endByte;
  }
}

const anyPack = fc
  .tuple(anyBatch, anyShape)
  .map(([batch, shape]) => makePack(batch, shape, new Map([[batch.samples[0]!.row, "oom"]]), IDENTITY));
const anyLengths = fc.array(fc.integer({ min: 1, max: 5_000 }), { minLength: 1, maxLength: 8 });

describe("PackChecker", () => {
  it("finds the same CRC wherever the bytes are cut", () => {
    fc.assert(
      fc.property(anyPack, anyLengths, ({ bytes, layout }, lengths) => {
        const checker = new PackChecker(bytes.length, { identity: IDENTITY, layout }, "pack");
        for (const piece of cut(bytes, lengths)) checker.add(piece);
        expect(checker.finish()).toBe(crc32c(bytes));
      }),
      { numRuns: 50 },
    );
  });

  it("refuses a pack with any one bit flipped, wherever the bytes are cut", () => {
    fc.assert(
      fc.property(anyPack, anyLengths, fc.nat(), fc.nat(7), ({ bytes, layout }, lengths, at, bit) => {
        const flipped = Buffer.from(bytes);
        flipped[at % bytes.length]! ^= 1 << bit;
        const checker = new PackChecker(bytes.length, { identity: IDENTITY, layout }, "pack");
        expect(() => {
          for (const piece of cut(flipped, lengths)) checker.add(piece);
        }).toThrow();
      }),
      { numRuns: 100 },
    );
  });

  it("refuses to finish before the last byte, and takes none after it", () => {
    fc.assert(
      fc.property(anyPack, fc.nat(), ({ bytes, layout }, at) => {
        const part = bytes.subarray(0, at % bytes.length);
        const checker = new PackChecker(bytes.length, { identity: IDENTITY, layout }, "pack");
        checker.add(part);
        expect(() => checker.finish()).toThrow(`they end after ${part.length}`);
        checker.add(bytes.subarray(part.length));
        expect(() => checker.add(Buffer.alloc(1))).toThrow("found more");
      }),
      { numRuns: 50 },
    );
  });
});

describe("checkPack", () => {
  it("reads no more than the header of a pack that is not ours", async () => {
    const shape = { taps: 1, hidden: 4, hasLossMask: false, metadataBytes: 600 };
    const { bytes, layout } = makePack(
      { index: 1, samples: [{ row: 1, tokens: 9 }] },
      shape,
      new Map(),
      "cd".repeat(32),
    );
    const reads: number[] = [];
    const read = (startByte: number, endByte: number) => {
      reads.push(endByte);
      return bytes.subarray(startByte, endByte);
    };
    const checked = checkPack(
      { bytes: bytes.length, sliceBytes: 2 ** 20, read },
      { identity: IDENTITY, layout },
      "pack",
    );
    await expect(checked).rejects.toThrow("expected a pack of run abab");
    expect(reads).toEqual([8, layout.headerBytes]);
  });
});
