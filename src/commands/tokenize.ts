import { EXIT, RunError } from "../base/errors.ts";
import type { VerbSpec } from "./verb.ts";

export const tokenize: VerbSpec = {
  name: "tokenize",
  settings: "tokenize",
  summary: "conversations (JSONL or Parquet) to a dataset of token ids and loss masks",
  options: [
    ["--input <path>", "JSONL or Parquet with conversations or messages"],
    ["--output <path>", "save_to_disk directory to write"],
  ],
  examples: [
    "forebay tokenize --model models/Qwen3-8B --input chats.jsonl --output data/train",
    "forebay tokenize --model DIR --input chats.parquet --output DIR --max-tokens 4096 --long truncate --limit 1000",
  ],
  async run() {
    throw new RunError({ op: "tokenize", subject: "-", message: "not wired yet", exit: EXIT.configuration });
  },
};
