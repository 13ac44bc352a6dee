import { EXIT } from "../base/errors.ts";
import { requireSetting } from "../config/resolve.ts";
import { readModelConfig } from "../model/config.ts";
import { dflashTaps, eagle3Taps, tapsMetadata, toBlocks } from "../model/taps.ts";
import { printJson, printLine, tableLines } from "./io.ts";
import type { VerbSpec } from "./verb.ts";

export const taps: VerbSpec = {
  name: "taps",
  settings: "taps",
  summary: "every layer numbering of a model, and the taps that trainers take",
  options: [["--layers <n>", "draft layers of the DFlash default (default: 5)"]],
  examples: [
    "forebay taps --model models/Qwen3-8B",
    "forebay taps --model models/Qwen3-8B --taps 2,17,32 --taps-as vllm",
  ],
  async run({ io, settings, options, json }) {
    const model = readModelConfig(requireSetting(settings, "model"));
    const { blocks } = model;
    const { taps: asked, tapsAs } = settings.values;
    const chosen = asked && toBlocks(asked, { blocks, as: tapsAs === "zlab" ? "forebay" : tapsAs });
    const layers = Number(options.layers ?? 5);
    const defaults = {
      dflash: orNull(() => dflashTaps(blocks, layers)),
      eagle3: orNull(() => eagle3Taps(blocks)),
    };
    const shown = chosen ?? Array.from({ length: blocks }, (_, k) => k);
    const { vllm, hf } = tapsMetadata(shown, blocks);
    if (json) {
      printJson(io, {
        architecture: model.architecture,
        blocks,
        hidden: model.hidden,
        taps: shown,
        vllm,
        hf,
        defaults,
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
