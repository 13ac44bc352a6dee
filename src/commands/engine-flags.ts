import { EXIT, RunError } from "../base/errors.ts";
import type { Resolved } from "../config/resolve.ts";
import { SETTING_KEYS, SETTINGS, type SettingKey, type SettingValues } from "../config/settings.ts";

export type EngineName = SettingValues["engine"];

export const ENGINES: readonly EngineName[] = ["onnx", "transformers", "vllm"];
/** Settings that mean nothing to some engine, and those to which they do. */
const TAKEN_BY: Partial<Record<SettingKey, readonly EngineName[]>> = {
  devices: ["transformers", "vllm"],
  python: ["transformers", "vllm"],
  threads: ["onnx", "transformers"],
  attn: ["transformers"],
  strict: ["transformers"],
  allowSlowKernels: ["transformers"],
  vllm: ["vllm"],
  serve: ["vllm"],
  vllmArg: ["vllm"],
};
/** A vLLM server that runs already has its own. */
const OF_SERVERS_STARTED: readonly SettingKey[] = ["devices", "python", "vllmArg"];

/** The engine that somebody has named; null: it is the one that the run was begun with. */
export function namedEngine({ values, sources }: Resolved): EngineName | null {
  return sources.engine === "default" ? null : values.engine;
}

/** The settings of which none of the `engines`, as `values` would have them, makes anything. */
export function foreignKeys(values: SettingValues, engines: readonly EngineName[]): SettingKey[] {
  return SETTING_KEYS.filter((key) => takersElsewhere(key, values, engines) !== null);
}

/**
 * Throws (usage) for a flag that none of the `engines` takes: it would do nothing, without a word. What run.yaml and
 * the environment say for another engine may stand there.
 */
export function refuseForeignFlags(settings: Resolved, engines: readonly EngineName[]): void {
  const [key] = foreignFlags(settings, engines);
  if (key === undefined) return;
  const flag = `--${SETTINGS[key].name}`;
  const takers = takersElsewhere(key, settings.values, engines);
  throw refusal(flag, `${flag} is for ${takers}, and this is ${engines.join(" and ")}`);
}

/** The same where the store is yet to say which engine it is: throws where there is none that takes all the flags. */
export function refuseFlagsOfNoEngine(settings: Resolved): void {
  const refused = ENGINES.map((engine) => foreignFlags(settings, [engine]));
  if (refused.some((keys) => keys.length === 0)) return;
  const flags = [...new Set(refused.flat())].map((key) => `--${SETTINGS[key].name}`);
  throw refusal(flags[0]!, `no engine takes ${flags.join(" and ")} together`);
}

function foreignFlags({ values, sources }: Resolved, engines: readonly EngineName[]): SettingKey[] {
  return foreignKeys(values, engines).filter((key) => sources[key] === "flag");
}

/** Who takes the setting, in words; null where one of the `engines` does. */
function takersElsewhere(
  key: SettingKey,
  { vllm, serve }: SettingValues,
  engines: readonly EngineName[],
): string | null {
  const takers = TAKEN_BY[key];
  if (!takers) return null;
  const here = takers.filter((taker) => engines.includes(taker));
  if (here.length === 0) return `the engine ${takers.join(" or ")}`;
  const isServed = vllm.length > 0 && !serve && here.every((engine) => engine === "vllm");
  return isServed && OF_SERVERS_STARTED.includes(key) ? "servers that are started here (--serve)" : null;
}

function refusal(flag: string, message: string): RunError {
  return new RunError({
    op: "read settings",
    subject: flag,
    message,
    safe: "nothing was started",
    hint: `leave ${flag} out, or choose another --engine`,
    exit: EXIT.usage,
  });
}
