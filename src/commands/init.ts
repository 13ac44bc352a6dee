import { resolve } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import { publishNew } from "../base/publish.ts";
import { writeRunYaml } from "../config/run-yaml.ts";
import { printJson, printLine } from "./io.ts";
import type { VerbSpec } from "./verb.ts";

export const init: VerbSpec = {
  name: "init",
  settings: "run",
  summary: "write a commented run.yaml with every setting",
  arguments: [["[address]", "s3://bucket/prefix/name or file:directory/name"]],
  options: [["--output <path>", "file to write (default: run.yaml)"]],
  examples: [
    "forebay init s3://bucket/prefix/name",
    "forebay init file:runs/first --model models/Qwen3-8B --dataset data/train --taps 1,17,33",
  ],
  async run({ io, options, settings, address, json }) {
    const path = resolve(io.directory, (options.output as string | undefined) ?? "run.yaml");
    if (!publishNew(path, Buffer.from(writeRunYaml(address, settings.written)))) {
      throw new RunError({
        op: "write settings",
        subject: path,
        message: "the file is there already",
        safe: "it was left as it is",
        hint: "name another with --output, or move it away",
        exit: EXIT.usage,
      });
    }
    if (json) printJson(io, { path });
    else printLine(io, `wrote ${path}\nnext: fill it in, then forebay run --print-settings`);
    return EXIT.done;
  },
};
