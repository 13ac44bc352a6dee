import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { afterAll } from "vitest";
import { describeEngine, type EngineUnderTest } from "./support/engine-conformance.ts";
import { printingPythonPath, ROOT, transformersCommand } from "./support/transformers.ts";

const printing = printingPythonPath();
afterAll(() => rmSync(printing, { recursive: true }));

function transformers(model: string, taps: number[]): EngineUnderTest {
  const config = JSON.parse(readFileSync(join(ROOT, model, "config.json"), "utf8"));
  const text = config.text_config ?? config;
  return {
    command: transformersCommand(),
    model: join(ROOT, model),
    facts: {
      arch: config.architectures[0],
      blocks: text.num_hidden_layers,
      hidden: text.hidden_size,
      vocab: text.vocab_size,
    },
    taps,
    load: { options: { threads: 1 } },
    printingEnv: { PYTHONPATH: printing },
    // One bf16 rounding apart where float32 lies on an edge; the same against the golden float32.
    batchTolerance: 2 ** -8,
    goldenTolerance: 2 ** -8,
  };
}

describeEngine("transformers on the multimodal hybrid", () =>
  transformers("fixtures/models/random-qwen3_5-vl", [0, 1, 3]),
);
