import { EXIT, RunError } from "../base/errors.ts";
import type { VerbSpec } from "./verb.ts";

export const check: VerbSpec = {
  name: "check",
  settings: "check",
  summary: "the gate: prove an engine's states right before a run costs money",
  examples: [
    "forebay check --model models/Qwen3-8B --dataset data/train --taps 1,17,33 --engine transformers",
  ],
  async run() {
    throw new RunError({
      op: "check",
      subject: "the gate",
      message: "this version cannot check an engine on its own yet",
      hint: "forebay run checks ids, checksums and every state it stores",
      exit: EXIT.configuration,
    });
  },
};
