import { EXIT, RunError } from "../base/errors.ts";
import type { Resolved } from "../config/resolve.ts";
import { SETTING_KEYS, SETTINGS, type SettingKey, type SettingValues } from "../config/settings.ts";

type EngineName = SettingValues["engine"];

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
const OF_SERVERS_STARTED: readonly SettingKey[] = ["devices", "python"];

/** Whether no engine of these names makes anything of the setting. */
export function isForeign(key: SettingKey, engines: readonly EngineName[]): boolean {
  return TAKEN_BY[key]?.some((taker) => engines.includes(taker)) === false;
}

/**
 * Throws (usage) for a flag that none of the `engines` takes: it would do nothing, without a word. What run.yaml and
 * the environment say for another engine may stand there.
 */
export function refuseForeignFlags({ sources, values }: Resolved, engines: readonly EngineName[]): void {
  const isServed = values.vllm.length > 0 && engines.every((engine) => engine === "vllm");
  for (const key of SETTING_KEYS) {
    if (sources[key] !== "flag") continue;
    if (isForeign(key, engines)) throw forNobody(key, `the engine ${TAKEN_BY[key]!.join(" or ")}`, engines);
    if (isServed && OF_SERVERS_STARTED.includes(key)) {
      throw forNobody(key, "servers that are started here (--serve)", engines);
    }
  }
}

function forNobody(key: SettingKey, takers: string, engines: readonly EngineName[]): RunError {
  const flag = `--${SETTINGS[key].name}`;
  return new RunError({
    op: "read settings",
    subject: flag,
    message: `${flag} is for ${takers}, and this is ${engines.join(" and ")}`,
    safe: "nothing was started",
    hint: `leave ${flag} out, or choose another --engine`,
    exit: EXIT.usage,
  });
}
