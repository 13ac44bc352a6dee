import { spawnSync } from "node:child_process";
import { describeError, RunError } from "../base/errors.ts";
import { engineEnvironment } from "../engine/environment.ts";
import type { Hello } from "../engine/protocol.ts";
import { choosePython, needPython } from "../engine/transformers.ts";
import { broken, type Finding, ok, weak } from "./doctor-checks.ts";
import { vllmProgram } from "./engine-commands.ts";
import { withFirstEngine } from "./first-engine.ts";
import type { Call } from "./verb.ts";

/** Without them transformers computes the linear attention of Qwen3.5 and its like slowly: on a GPU that is refused. */
const FAST_KERNELS = ["flash-linear-attention", "causal-conv1d"];
/** It imports torch, from a cold disk perhaps. */
const VERSION_MS_MAX = 120_000;

/** The Python engines: the one that was named must be able to start; of another it is told only what it lacks. */
export async function examineEngine(call: Call): Promise<Finding[]> {
  const { values, sources } = call.settings;
  const named = sources.engine === "default" ? null : values.engine;
  if (named === "transformers") return startTransformers(call);
  const findings = [examinePython(call)];
  if (named === "vllm" && values.vllm.length === 0) findings.push(examineVllmProgram(call));
  return findings;
}

async function startTransformers({ io, settings }: Call): Promise<Finding[]> {
  try {
    return await withFirstEngine(io, settings.values, async ({ hello }) => describeHello(hello));
  } catch (error) {
    const hint = error instanceof RunError ? error.hint : undefined;
    return [
      broken("engine", `transformers: ${describeError(error)}`, hint ?? "name its Python with --python"),
    ];
  }
}

function describeHello({ versions, devices }: Hello): Finding[] {
  const names = devices.map(({ name }) => name).join(", ");
  const findings = [ok("engine", `transformers: starts with ${pairs(versions)}, on ${names}`)];
  const lacking = FAST_KERNELS.filter((name) => versions[name] === undefined);
  if (lacking.length > 0 && devices.some(({ uuid }) => uuid !== null)) {
    const found = `transformers: without ${lacking.join(" and ")}, models with linear attention (Qwen3.5) are refused on a GPU`;
    findings.push(weak("engine", found, `only for those: pip install ${lacking.join(" ")}`));
  }
  return findings;
}

/** Nothing but what is installed: to start it takes seconds. */
function examinePython({ io, settings }: Call): Finding {
  const python = choosePython(settings.values.python, io.env);
  try {
    return ok("engine", `transformers: ${pairs(needPython(python, engineEnvironment(io.env)))}`);
  } catch (error) {
    const hint = error instanceof RunError ? error.hint : undefined;
    const found = `transformers: ${python}: ${describeError(error)}`;
    return weak("engine", found, `only for --engine transformers: ${hint}`);
  }
}

function examineVllmProgram({ io, settings }: Call): Finding {
  const program = vllmProgram(settings.values.python, io.env);
  const env = engineEnvironment(io.env);
  const { status, stdout, error } = spawnSync(program, ["--version"], {
    env,
    encoding: "utf8",
    timeout: VERSION_MS_MAX,
  });
  if (status === 0) return ok("engine", `vllm: ${program} is ${stdout.trim().split("\n").at(-1)}`);
  const found = `vllm: there is no program ${program} that runs (${error?.message ?? `exit ${status}`})`;
  return broken("engine", found, "pip install 'vllm>=0.22', or name a server that runs: --vllm URL");
}

function pairs(versions: Record<string, string>): string {
  return Object.entries(versions)
    .map((pair) => pair.join(" "))
    .join(", ");
}
