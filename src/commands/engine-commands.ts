import { existsSync } from "node:fs";
import { availableParallelism } from "node:os";
import { dirname, join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import type { SettingValues } from "../config/settings.ts";
import type { EngineCommand } from "../engine/child.ts";
import { engineEnvironment, refusedEngineEnv } from "../engine/environment.ts";
import { onnxEngineCommand } from "../engine/onnx/command.ts";
import { choosePython, needPython, transformersEngineCommand } from "../engine/transformers.ts";
import { type VllmTarget, vllmEngineCommand } from "../engine/vllm/command.ts";
import type { EngineSetup } from "../run/options.ts";
import { needGpus, visibleGpus } from "./gpus.ts";

/** How to start each engine, and what all of them are told at `load`. */
export function planEngines(
  values: SettingValues,
  env: NodeJS.ProcessEnv,
): Pick<EngineSetup, "commands" | "options"> {
  refuseMisuse(values);
  const extra = Object.fromEntries(values.engineEnv);
  if (values.devices && values.engine !== "onnx") needGpus(values.devices, env);
  const devices = values.devices ?? defaultDevices(values, env);
  const servers = values.engine === "vllm" && values.vllm.length > 0 ? values.vllm.length : undefined;
  const count = values.engines ?? servers ?? devices?.length ?? 1;
  const environments = Array.from({ length: count }, (_, engine) =>
    engineEnvironment(env, { extra, device: devicesOf(engine, count, devices) }),
  );
  return {
    commands: commandsFor(values, environments, env),
    options: {
      // Fewer engines than devices: each model over several of them.
      device_map: devices && devices.length > count ? "auto" : null,
      threads: values.threads ?? Math.max(1, Math.floor(availableParallelism() / count)),
      forward_tokens: values.forwardTokens,
      sharers: count,
      attn: values.attn,
      strict: values.strict,
      allow_slow_kernels: values.allowSlowKernels,
    },
  };
}

/** Throws (usage) for settings that such an engine could be started with on no machine. Starts and reads nothing. */
export function refuseMisuse({ engine, engineEnv, vllm, serve }: SettingValues): void {
  const refused = refusedEngineEnv(Object.fromEntries(engineEnv));
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
  if (engine !== "vllm" || serve !== vllm.length > 0) return;
  throw new RunError({
    op: "start engine",
    subject: "--engine vllm",
    message: `expected either --vllm or --serve, ${serve ? "found both" : "found neither"}`,
    safe: "nothing was started",
    hint: "--vllm http://127.0.0.1:8000 for a server that runs, --serve to start one for each device",
    exit: EXIT.usage,
  });
}

/**
 * All GPUs that are seen, for an engine each; null: nobody chooses for the engines. That is so where the person has
 * chosen in another way: by a number of engines, by their environment, or by one server that is told to spread.
 */
function defaultDevices(values: SettingValues, env: NodeJS.ProcessEnv): string[] | null {
  const { engine, engines, engineEnv, serve, vllmArg } = values;
  if (engine === "onnx" || (engine === "vllm" && !serve)) return null;
  if (engines !== null || engineEnv.some(([name]) => name === "CUDA_VISIBLE_DEVICES")) return null;
  if (engine === "vllm" && vllmArg.some((word) => SPREADS.test(word))) return null;
  const seen = visibleGpus(env);
  return seen.length > 0 ? seen : null;
}

/** vLLM's arguments for a model over several GPUs. */
const SPREADS = /^(?:--(?:tensor|pipeline|data)[-_]parallel[-_]size|-[tpd]p)(?:=|$)/;

/** The devices of one engine, as CUDA_VISIBLE_DEVICES names them; null: whatever it sees. */
function devicesOf(engine: number, engines: number, devices: string[] | null): string | null {
  if (!devices) return null;
  if (engines >= devices.length) return devices[engine % devices.length] ?? null;
  const [start, end] = [engine, engine + 1].map((n) => Math.floor((n * devices.length) / engines));
  return devices.slice(start, end).join(",");
}

function commandsFor(
  values: SettingValues,
  environments: Record<string, string>[],
  env: NodeJS.ProcessEnv,
): EngineCommand[] {
  switch (values.engine) {
    case "onnx":
      return environments.map((environment) => onnxEngineCommand({ env: environment }));
    case "transformers": {
      const python = choosePython(values.python, env);
      needPython(python, environments[0]!);
      return environments.map((own, number) => transformersEngineCommand({ python, env: own, number }));
    }
    case "vllm":
      return environments.map((own, number) =>
        vllmEngineCommand({ target: vllmTarget(values, number, env), env: own }),
      );
  }
}

/** The server that engine `number` asks, or the program that it starts one with. */
function vllmTarget(values: SettingValues, number: number, env: NodeJS.ProcessEnv): VllmTarget {
  const { vllm, serve, vllmArg } = values;
  if (serve) return { program: vllmProgram(values.python, env), extra: vllmArg };
  return { url: vllm[number % vllm.length]! };
}

/** `vllm` beside the Python that was named or is active; else whatever PATH has. */
export function vllmProgram(given: string | null, env: NodeJS.ProcessEnv): string {
  const beside = join(dirname(choosePython(given, env)), "vllm");
  return existsSync(beside) && beside !== "vllm" ? beside : "vllm";
}
