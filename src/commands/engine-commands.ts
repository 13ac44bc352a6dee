import { availableParallelism } from "node:os";
import { EXIT, RunError } from "../base/errors.ts";
import type { SettingValues } from "../config/settings.ts";
import type { EngineCommand } from "../engine/child.ts";
import { engineEnvironment, refusedEngineEnv } from "../engine/environment.ts";
import { onnxEngineCommand } from "../engine/onnx/command.ts";

/** How to start each engine, and what all of them are told at `load`. */
export interface EnginePlan {
  commands: EngineCommand[];
  options: Record<string, string | number | boolean | null>;
}

export function planEngines(values: SettingValues, env: NodeJS.ProcessEnv): EnginePlan {
  const { devices } = values;
  const count = values.engines ?? devices?.length ?? 1;
  const extra = Object.fromEntries(values.engineEnv);
  const refused = refusedEngineEnv(extra);
  if (refused.length > 0) {
    throw new RunError({
      op: "read setting",
      subject: "--engine-env",
      message: `${refused.join(", ")} looks like a secret, and engines get none`,
      safe: "nothing was started",
      hint: "engines read models from disk and need no credentials",
      exit: EXIT.usage,
    });
  }
  const commands = Array.from({ length: count }, (_, engine) =>
    commandFor(values, engineEnvironment(env, { extra, device: devices?.[engine % devices.length] ?? null })),
  );
  return {
    commands,
    options: {
      threads: values.threads ?? Math.max(1, Math.floor(availableParallelism() / count)),
      forward_tokens: values.forwardTokens,
      attn: values.attn,
      strict: values.strict,
      allow_slow_kernels: values.allowSlowKernels,
    },
  };
}

function commandFor({ engine }: SettingValues, env: Record<string, string>): EngineCommand {
  switch (engine) {
    case "onnx":
      return onnxEngineCommand({ env });
    case "transformers":
    case "vllm":
      throw new RunError({
        op: "start engine",
        subject: `--engine ${engine}`,
        message: `this version does not have the ${engine} engine yet`,
        safe: "nothing was started",
        hint: "--engine onnx runs Llama, Qwen2 and Qwen3 models on CPUs",
        exit: EXIT.configuration,
      });
  }
}
