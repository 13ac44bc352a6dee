import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EXIT } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import { requireSetting } from "../config/resolve.ts";
import { Engine } from "../engine/engine.ts";
import { type ModelConfig, readModelConfig } from "../model/config.ts";
import { type GateReport, type GateSample, runGate } from "../run/gate.ts";
import { planEngines } from "./engine-commands.ts";
import { tapBlocks } from "./extract-options.ts";
import { printJson, printLine, say } from "./io.ts";
import type { Call, VerbSpec } from "./verb.ts";

/** Different lengths, so that padding and batching show; short, so that the gate costs seconds. */
const SAMPLE_TOKENS = [7, 48, 129, 256];

export const check: VerbSpec = {
  name: "check",
  settings: "check",
  summary: "the gate: prove an engine's states right before a run costs money",
  examples: [
    "forebay check --model models/Qwen3-8B --taps 1,17,33",
    "forebay check --model models/Qwen3-8B --taps 1,17,33 --engine transformers --devices 0",
  ],
  async run(call) {
    const { io, settings, json } = call;
    const { engine } = settings.values;
    const report = await checkEngine(call);
    if (json) printJson(io, { ok: report.ok, engine, results: report.results });
    else printLine(io, `${report.text}\n${report.ok ? "ok" : "NOT ok: do not run it"}`);
    return report.ok ? EXIT.done : EXIT.integrity;
  },
};

async function checkEngine({ io, settings }: Call): Promise<GateReport> {
  const model = requireSetting(settings, "model");
  const config = readModelConfig(model);
  const taps = tapBlocks(settings);
  const { commands, options } = planEngines({ ...settings.values, engines: 1 }, io.env);
  const directory = mkdtempSync(join(tmpdir(), "forebay-check-"));
  let engine: Engine | null = null;
  try {
    say(io, "loading the model");
    const command = commands[0]!;
    engine = await Engine.start({
      command,
      label: `${command.name}-0`,
      log: silentLog,
      stderrFile: null,
      signal: io.signal,
    });
    const { dtype } = settings.values;
    const loaded = await engine.load({ model, dtype, device: null, taps, options });
    say(io, "checking the engine's states");
    const shape = { taps: taps.length, hidden: config.hidden };
    return await runGate(engine, loaded, sampleIds(config), { shape, directory, log: silentLog });
  } finally {
    await engine?.shutdown();
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Fixed ids from all over the vocabulary: what is proven here does not depend on the text. */
function sampleIds({ vocab, positions }: ModelConfig): GateSample[] {
  return SAMPLE_TOKENS.map((tokens, row) => ({
    row,
    ids: Array.from(
      { length: Math.min(tokens, positions ?? tokens) },
      (_, i) => (row * 7_919 + i * 104_729) % vocab,
    ),
  }));
}
