import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { EXIT } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import { requireSetting } from "../config/resolve.ts";
import type { SettingValues } from "../config/settings.ts";
import type { Engine } from "../engine/engine.ts";
import { type ModelConfig, readModelConfig } from "../model/config.ts";
import { compareStates, describeAgreement, statesOf, type TapAgreement } from "../run/against.ts";
import { type GateReport, type GateSample, runGate } from "../run/gate.ts";
import { tapBlocks } from "./chosen-taps.ts";
import { refuseForeignFlags } from "./engine-flags.ts";
import { withFirstEngine } from "./first-engine.ts";
import { printJson, printLine, say } from "./io.ts";
import type { Call, VerbSpec } from "./verb.ts";

/** Different lengths, so that padding and batching show; short, so that the gate costs seconds. */
const SAMPLE_TOKENS = [7, 48, 129, 230, 256];

export const check: VerbSpec = {
  name: "check",
  settings: "check",
  summary: "the gate: prove an engine's states right before a run costs money",
  examples: [
    "forebay check --model models/Qwen3-8B --taps 1,17,33",
    "forebay check --model models/Qwen3-8B --taps 1,17,33 --engine transformers --devices 0",
    "forebay check --model models/Qwen3-8B --for speculators-dflash --against transformers",
    "forebay check --model DIR --taps 1 --engine transformers --against transformers   # how noisy it is",
  ],
  async run(call) {
    const { io, settings, json } = call;
    const { engine, against } = settings.values;
    const { gate, agreement } = await checkEngine(call);
    const isWrong = gate.state === "failed" || agreement?.some((tap) => !tap.ok);
    const isProven = gate.state === "passed" || agreement !== null;
    const ok = isProven && !isWrong;
    if (json) {
      printJson(io, {
        ok,
        engine,
        gate: gate.state,
        results: gate.results,
        ...(agreement ? { against, agreement } : {}),
      });
    } else {
      printLine(io, gate.text);
      if (agreement) printLine(io, `against ${against}:\n${describeAgreement(agreement)}`);
      printLine(io, ok ? "ok" : isWrong ? "NOT ok: do not run it" : "NOT proven");
    }
    return ok ? EXIT.done : isWrong ? EXIT.integrity : EXIT.configuration;
  },
};

async function checkEngine(call: Call): Promise<{ gate: GateReport; agreement: TapAgreement[] | null }> {
  const { io, settings } = call;
  const { engine: name, against } = settings.values;
  refuseForeignFlags(settings, against === null ? [name] : [name, against]);
  const config = readModelConfig(requireSetting(settings, "model"));
  const taps = tapBlocks(settings, config.blocks);
  const shape = { taps: taps.length, hidden: config.hidden };
  const samples = sampleIds(config);
  const directory = mkdtempSync(join(tmpdir(), "forebay-check-"));
  try {
    say(io, "loading the model");
    const own = await withEngine(call, { name, taps }, async (engine) => {
      say(io, "checking the engine's states");
      const gate = await runGate(engine, engine.loaded!, samples, { shape, directory, log: silentLog });
      return {
        gate,
        states: against === null ? null : await statesOf(engine, samples, { shape, directory }),
      };
    });
    if (against === null || own.states === null) return { gate: own.gate, agreement: null };
    say(io, `loading the model in the ${against} engine`);
    const other = await withEngine(call, { name: against, taps }, (engine) =>
      statesOf(engine, samples, { shape, directory }),
    );
    return { gate: own.gate, agreement: compareStates([own.states, other], { taps, shape }) };
  } finally {
    rmSync(directory, { recursive: true, force: true });
  }
}

/** `use` of one engine with the model in it. */
function withEngine<T>(
  { io, settings }: Call,
  { name, taps }: { name: SettingValues["engine"]; taps: number[] },
  use: (engine: Engine) => Promise<T>,
): Promise<T> {
  const { values } = settings;
  return withFirstEngine(io, { ...values, engine: name }, async (engine, options) => {
    await engine.load({
      model: requireSetting(settings, "model"),
      // Another engine computes in what it does best: an onnx engine knows float32 only.
      dtype: name === values.engine ? values.dtype : "auto",
      device: null,
      taps,
      options: { ...options, longest_tokens: Math.max(...SAMPLE_TOKENS) },
    });
    return use(engine);
  });
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
