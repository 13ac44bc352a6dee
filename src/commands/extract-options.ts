import { totalmem } from "node:os";
import { join } from "node:path";
import { type Resolved, requireSetting } from "../config/resolve.ts";
import type { SettingValues } from "../config/settings.ts";
import { FILES } from "../control/run-directory.ts";
import { needSupported } from "../engine/onnx/support.ts";
import { limitsOf } from "../engine/watchdog.ts";
import { readModelConfig } from "../model/config.ts";
import type { DatasetChoice } from "../run/inputs.ts";
import type { EngineSetup, ExtractOptions } from "../run/options.ts";
import type { RunRequest } from "../run/prepare.ts";
import type { EngineFacts } from "../run/record.ts";
import { tapBlocks } from "./chosen-taps.ts";
import { planEngines, refuseMisuse } from "./engine-commands.ts";
import { namedEngine, refuseFlagsOfNoEngine, refuseForeignFlags } from "./engine-flags.ts";
import { appVersion } from "./package-info.ts";
import { resumeCommand } from "./resume-command.ts";
import type { RunPlace } from "./run-place.ts";
import { shownSettings } from "./shown-settings.ts";
import { needVllmServer } from "./vllm-servers.ts";

const INFLIGHT_BYTES_MIN = 256 * 2 ** 20;
const INFLIGHT_BYTES_MAX = 16 * 2 ** 30;

/**
 * The settings of a run as the extraction takes them. Reads config.json of the model, for its number of blocks. Throws
 * (usage) for what no engine could be started with: the rest has to wait for the store, which may name the engine.
 */
export function extractOptions(input: {
  verb: "run" | "resume";
  place: RunPlace;
  settings: Resolved;
  env: NodeJS.ProcessEnv;
}): ExtractOptions {
  const { place, settings } = input;
  const { values } = settings;
  refuseMisfits(settings);
  return {
    spec: place.spec,
    address: place.address,
    request: runRequest(input.verb, settings),
    part: values.part,
    takeOver: values.takeOver,
    engines: async (begun) => {
      const setup = await engineSetup(settings, begun, input.env);
      const { engine } = setup.facts;
      return { ...setup, resumeCommand: resumeCommand(place, settings, { engine, env: input.env }) };
    },
    engineLimits: limitsOf(values.engineTimeoutMs),
    maxSkips: values.maxSkips,
    gate: values.gate,
    spool: {
      directory: values.spool ?? join(place.directory, FILES.spool),
      budgetBytes: values.spoolBytes,
      floorBytes: values.diskFloorBytes,
    },
    uploads: values.uploads,
    inflightBytes: values.inflightBytes ?? defaultInflightBytes(totalmem()),
    attachments: values.attach,
    maxBlockedMs: values.maxBlockedMs,
    stopDeadlineMs: values.stopDeadlineMs,
    runDirectory: place.directory,
    appVersion: appVersion(),
    price: values.pricePerHour === null ? null : { currency: "USD", perHour: values.pricePerHour },
    resumeCommand: resumeCommand(place, settings, { engine: namedEngine(settings), env: input.env }),
    settings: shownSettings(settings),
  };
}

/**
 * Throws (usage, configuration) for settings that no engine can be started with, as far as it can be told without the
 * store. `engine`: null where only the store knows it.
 */
export function refuseMisfits(settings: Resolved, engine = namedEngine(settings)): void {
  const { values } = settings;
  if (engine === null) refuseFlagsOfNoEngine(settings);
  else refuseForeignFlags(settings, [engine]);
  refuseMisuse(engine === null ? values : { ...values, engine });
  const model = requireSetting(settings, "model");
  const config = readModelConfig(model);
  if (engine === "onnx") needSupported(config, model);
}

async function engineSetup(
  settings: Resolved,
  begun: Partial<EngineFacts>,
  env: NodeJS.ProcessEnv,
): Promise<Omit<EngineSetup, "resumeCommand">> {
  const values = asBegun(settings, begun);
  const { engine, dtype, attn, strict } = values;
  refuseForeignFlags(settings, [engine]);
  const setup = { facts: { engine, dtype, attn, strict }, ...planEngines(values, env) };
  const model = requireSetting(settings, "model");
  if (engine === "onnx") needSupported(readModelConfig(model), model);
  if (engine === "vllm") await needVllmServer(values.vllm);
  return setup;
}

/** What nobody has asked for is as the run was begun; how one engine computes means nothing to another. */
function asBegun({ values, sources }: Resolved, begun: Partial<EngineFacts>): SettingValues {
  const asked = Object.keys(begun).filter((key) => sources[key as keyof EngineFacts] !== "default");
  if (asked.includes("engine") && values.engine !== begun.engine) return values;
  const kept = Object.entries(begun).filter(([key]) => !asked.includes(key));
  return { ...values, ...Object.fromEntries(kept) };
}

/** Which run it is: only this part of the settings decides its identity. */
function runRequest(verb: "run" | "resume", settings: Resolved): RunRequest {
  const { values } = settings;
  const modelDirectory = requireSetting(settings, "model");
  const fresh = verb === "run";
  return {
    modelDirectory,
    dataset: fresh ? datasetChoice(settings) : null,
    taps: fresh ? tapBlocks(settings, readModelConfig(modelDirectory).blocks) : null,
    packBytesMax: values.packBytes,
    order: values.order,
    seed: values.seed,
    maxTokens: values.maxTokens,
    long: values.long,
  };
}

/** --dataset with --split, --rows and --limit. */
export function datasetChoice(settings: Resolved): DatasetChoice {
  const { split } = settings.values;
  return { path: requireSetting(settings, "dataset"), split, ...rowsAsked(settings) };
}

/** --rows and --limit as rows [startRow, endRow); null: to the end. */
export function rowsAsked(settings: Resolved): { startRow: number; endRow: number | null } {
  const { rows, limit } = settings.values;
  const startRow = rows?.start ?? 0;
  const ends = [rows?.end ?? null, limit === null ? null : startRow + limit].filter((end) => end !== null);
  return { startRow, endRow: ends.length === 0 ? null : Math.min(...ends) };
}

/** An eighth of the memory, within bounds: packs in flight live outside the JavaScript heap. */
function defaultInflightBytes(memoryBytes: number): number {
  return Math.min(INFLIGHT_BYTES_MAX, Math.max(INFLIGHT_BYTES_MIN, Math.floor(memoryBytes / 8)));
}
