import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describeEngine, type EngineUnderTest } from "./support/engine-conformance.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));

/** In every thread of a Node child: a line before anything of ours runs, and then all the time. */
const PRINTING_NODE = {
  NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(
    'console.log("stray, early"); setInterval(() => process.stdout.write("stray\\n"), 5).unref()',
  )}`,
};

async function onnx(model: string, taps: number[]): Promise<EngineUnderTest> {
  const { onnxEngineCommand } = (await import(join(ROOT, "dist/engine/onnx/command.js"))) as {
    onnxEngineCommand: typeof import("../src/engine/onnx/command.ts").onnxEngineCommand;
  };
  const config = JSON.parse(readFileSync(join(ROOT, model, "config.json"), "utf8")) as Record<string, number>;
  return {
    command: onnxEngineCommand({ env: { PATH: "/usr/bin:/bin" } }),
    model: join(ROOT, model),
    facts: {
      arch: "Qwen3ForCausalLM",
      blocks: config.num_hidden_layers!,
      hidden: config.hidden_size!,
      vocab: config.vocab_size!,
    },
    taps,
    load: { options: { threads: 1 } },
    printingEnv: PRINTING_NODE,
    // Bitwise the same in a batch and alone; bf16 rounding of float32 against the golden float32.
    batchTolerance: 0,
    goldenTolerance: 2 ** -8,
  };
}

describeEngine("onnx on random-qwen3", () => onnx("fixtures/models/random-qwen3", [0, 2, 4, 5]));
describeEngine("onnx on the demo's model", () => onnx("demo/tiny-qwen3", [1, 4, 7]));
