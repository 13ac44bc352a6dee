import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { dflashTaps, eagle3Taps, parseTaps, tapsMetadata, toBlocks } from "./taps.ts";

describe("defaults", () => {
  it("DFlash with five draft layers on 64 blocks taps 1 16 31 46 61", () => {
    expect(dflashTaps(64, 5)).toEqual([1, 16, 31, 46, 61]);
  });

  it("DFlash with one draft layer taps the middle", () => {
    expect(dflashTaps(36, 1)).toEqual([18]);
  });

  it("halves round to even, as Python does", () => {
    // 1 + j * 26 / 4 = 1, 7.5, 14, 20.5, 27
    expect(dflashTaps(30, 5)).toEqual([1, 8, 14, 20, 27]);
    // 1 + j * 1 / 2 = 1, 1.5, 2: 1.5 goes to 2, which then stands twice.
    expect(() => dflashTaps(5, 3)).toThrow("tap 2 stands twice");
  });

  it("EAGLE-3's 2, N//2, N-3 are vLLM's numbers, one above the blocks they name", () => {
    expect(eagle3Taps(36)).toEqual([1, 17, 32]);
    expect(() => eagle3Taps(4)).toThrow(RunError);
  });
});

describe("numberings", () => {
  it("the same blocks have vLLM and Hugging Face ids one higher", () => {
    expect(toBlocks([2, 17, 32, 47, 62, 64], { blocks: 64, as: "vllm" })).toEqual([1, 16, 31, 46, 61, 63]);
    expect(toBlocks([2, 17, 62], { blocks: 64, as: "hf" })).toEqual([1, 16, 61]);
  });

  it("vLLM's id N is the last block before the norm, Hugging Face's index N is not and is refused", () => {
    expect(toBlocks([64], { blocks: 64, as: "vllm" })).toEqual([63]);
    expect(() => toBlocks([64], { blocks: 64, as: "hf" })).toThrow("after the final norm");
  });

  it("metadata says every numbering, whether the last state is there, and that it is pre-norm", () => {
    expect(tapsMetadata([1, 63], 64)).toEqual({
      blocks: [1, 63],
      vllm: [2, 64],
      hf: [2, null],
      lastState: true,
      lastStateNorm: "pre-norm",
    });
    expect(tapsMetadata([1, 62], 64)).toMatchObject({ hf: [2, 63], lastState: false, lastStateNorm: null });
  });

  it("vLLM ids of any taps lead back to those taps", () => {
    const tapsOf = fc
      .integer({ min: 1, max: 128 })
      .chain((blocks) =>
        fc.tuple(
          fc.constant(blocks),
          fc.uniqueArray(fc.nat(blocks - 1), { minLength: 1, maxLength: blocks }),
        ),
      );
    fc.assert(
      fc.property(tapsOf, ([blocks, unsorted]) => {
        const taps = unsorted.sort((a, b) => a - b);
        expect(toBlocks(tapsMetadata(taps, blocks).vllm, { blocks, as: "vllm" })).toEqual(taps);
        expect(parseTaps(taps.join(","), { blocks })).toEqual(taps);
      }),
    );
  });
});

describe("bad taps are usage errors that say what was found", () => {
  it.each([
    ["3,1", "taps must ascend, found 1 after 3"],
    ["1,1", "tap 1 stands twice"],
    ["-1,2", "tap -1 is negative"],
    ["1,8", "tap 8 is out of range: the model has 8 blocks"],
    ["1,x", 'expected whole numbers with commas between, found "x"'],
    ["1,,2", 'expected whole numbers with commas between, found ""'],
    ["", 'expected whole numbers with commas between, found ""'],
    ["1.5", 'expected whole numbers with commas between, found "1.5"'],
  ])("%s", (text, message) => {
    const attempt = () => parseTaps(text, { blocks: 8 });
    expect(attempt).toThrow(message);
    expect(attempt).toThrow(
      expect.objectContaining({ exit: EXIT.usage, hint: expect.stringContaining("0 to 7") }),
    );
  });

  it("vLLM's id 0 is the embeddings, which no block gives", () => {
    expect(() => parseTaps("0,2", { blocks: 8, as: "vllm" })).toThrow("the embeddings");
  });
});
