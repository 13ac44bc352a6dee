import { EXIT } from "../base/errors.ts";
import { requireSetting } from "../config/resolve.ts";
import { readModelConfig } from "../model/config.ts";
import { dflashTaps, eagle3Taps, tapsMetadata } from "../model/taps.ts";
import { DRAFT_LAYERS, describeTrainerUses, trainerUses } from "../model/trainers.ts";
import { chosenTaps } from "./chosen-taps.ts";
import { printJson, printLine, tableLines } from "./io.ts";
import type { VerbSpec } from "./verb.ts";

export const taps: VerbSpec = {
  name: "taps",
  settings: "taps",
  summary: "every layer numbering of a model, and the taps that trainers take",
  examples: [
    "forebay taps --model models/Qwen3-8B",
    "forebay taps --model models/Qwen3-8B --for speculators-dflash",
    "forebay taps --model models/Qwen3-8B --taps 2,17,32 --taps-as vllm",
  ],
  async run({ io, settings, json }) {
    const model = readModelConfig(requireSetting(settings, "model"));
    const { blocks } = model;
    const chosen = chosenTaps(settings, blocks);
    const layers = settings.values.draftLayers ?? DRAFT_LAYERS;
    const defaults = {
      dflash: orNull(() => dflashTaps(blocks, layers)),
      eagle3: orNull(() => eagle3Taps(blocks)),
    };
    const shown = chosen ?? Array.from({ length: blocks }, (_, k) => k);
    const numbering = tapsMetadata(shown, blocks);
    const { vllm, hf } = numbering;
    // All blocks are a table and no run.
    const trainers = chosen && trainerUses(numbering);
    if (json) {
      printJson(io, {
        architecture: model.architecture,
        blocks,
        hidden: model.hidden,
        taps: shown,
        vllm,
        hf,
        defaults,
        trainers,
      });
      return EXIT.done;
    }
    printLine(io, `${model.architecture}: ${blocks} blocks, hidden ${model.hidden}`);
    const rows = shown.map((block, i) => [String(block), String(hf[i] ?? "-"), String(vllm[i])]);
    const head = ["forebay, z-lab, SpecForge", "Hugging Face", "vLLM, speculators"];
    for (const line of tableLines([head, ...rows], new Set([0, 1, 2]))) printLine(io, line);
    if (shown.includes(blocks - 1)) {
      printLine(io, "The last block is stored before the final norm; Hugging Face shows it only after.");
    }
    printLine(io, `DFlash, ${layers} draft layers: ${listText(defaults.dflash)}`);
    printLine(io, `EAGLE-3:                ${listText(defaults.eagle3)}`);
    if (trainers) {
      printLine(io, `Trainers that can use a run with ${listText(chosen)}:`);
      for (const line of describeTrainerUses(trainers)) printLine(io, `  ${line}`);
    }
    return EXIT.done;
  },
};

function listText(blocks: number[] | null): string {
  return blocks ? `--taps ${blocks.join(",")}` : "the model has too few blocks";
}

/** A model with too few blocks has no such default; that is no failure of this verb. */
function orNull(make: () => number[]): number[] | null {
  try {
    return make();
  } catch {
    return null;
  }
}
