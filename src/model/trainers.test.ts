import { describe, expect, it } from "vitest";
import { EXIT } from "../base/errors.ts";
import { tapsMetadata } from "./taps.ts";
import { TRAINERS, tapsFor, trainerUse, trainerUses } from "./trainers.ts";

const DFLASH_64 = [1, 16, 31, 46, 61];

describe("the taps for a trainer", () => {
  it.each([
    ["speculators-dflash", [...DFLASH_64, 63]],
    ["speculators-eagle3", [1, 31, 60, 63]],
    ["specforge-dflash", DFLASH_64],
    ["zlab", DFLASH_64],
  ] as const)("%s of 64 blocks: %j", (trainer, taps) => {
    expect(tapsFor(trainer, { blocks: 64, draftLayers: null })).toEqual(taps);
  });

  it("other draft layers give other features, the last block stays", () => {
    expect(tapsFor("zlab", { blocks: 36, draftLayers: 1 })).toEqual([18]);
    expect(tapsFor("speculators-dflash", { blocks: 36, draftLayers: 3 })).toEqual([1, 17, 33, 35]);
  });

  it("what is chosen for a trainer can be used by it, for any model that has blocks enough", () => {
    for (const trainer of TRAINERS) {
      for (let blocks = 8; blocks <= 128; blocks += 1) {
        const taps = tapsFor(trainer, { blocks, draftLayers: null });
        expect(trainerUse(trainer, tapsMetadata(taps, blocks)).reason, `${trainer}, ${blocks}`).toBeNull();
      }
    }
  });

  it.each(TRAINERS)("%s: too few blocks are a usage error that tells how many there are", (trainer) => {
    expect(() => tapsFor(trainer, { blocks: 4, draftLayers: null })).toThrow(
      expect.objectContaining({
        exit: EXIT.usage,
        subject: `--for ${trainer}`,
        message: expect.stringContaining("found 4 blocks"),
      }),
    );
  });

  it("a model of one block has no feature before its last", () => {
    expect(() => tapsFor("zlab", { blocks: 1, draftLayers: 1 })).toThrow("found 1 blocks");
  });

  it("draft layers for EAGLE-3 are refused and not ignored", () => {
    expect(() => tapsFor("speculators-eagle3", { blocks: 64, draftLayers: 5 })).toThrow(
      "takes no --layers, found 5: EAGLE-3 has three features unless --taps names others",
    );
  });
});

describe("which trainers can use a run", () => {
  it("with the last block all can, each told of the features alone, in its own numbering", () => {
    const uses = trainerUses(tapsMetadata([...DFLASH_64, 63], 64));
    expect(uses.map(({ trainer, setting, reason }) => [trainer, setting, reason])).toEqual([
      ["speculators-dflash", "--target-layer-ids 2 17 32 47 62", null],
      ["speculators-eagle3", "--target-layer-ids 2 17 32 47 62", null],
      ["specforge-dflash", '"dflash_config": {"target_layer_ids": [1, 16, 31, 46, 61]}', null],
      ["zlab", '"dflash_config": {"target_layer_ids": [1, 16, 31, 46, 61]}', null],
    ]);
    expect(uses.map(({ features }) => features)).toEqual(TRAINERS.map(() => DFLASH_64));
  });

  it("without it speculators cannot, and the reason says so", () => {
    const uses = trainerUses(tapsMetadata(DFLASH_64, 64));
    expect(uses.map(({ ok }) => ok)).toEqual([false, false, true, true]);
    expect(uses[0]).toMatchObject({
      setting: null,
      reason: "it needs the last block's output, which is not tapped",
    });
  });

  it("with nothing but the last block none can", () => {
    const uses = trainerUses(tapsMetadata([63], 64));
    expect(uses.map(({ reason }) => reason)).toEqual(
      TRAINERS.map(() => expect.stringContaining("blocks before the last")),
    );
  });
});
