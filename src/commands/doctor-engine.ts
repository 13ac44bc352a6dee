import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { describeError, RunError } from "../base/errors.ts";
import { engineEnvironment } from "../engine/environment.ts";
import type { Hello } from "../engine/protocol.ts";
import { choosePython, needPython } from "../engine/transformers.ts";
import { broken, type Finding, ok, weak } from "./doctor-checks.ts";
import { vllmProgram } from "./engine-commands.ts";
import { withFirstEngine } from "./first-engine.ts";
import type { Call } from "./verb.ts";

/** It imports torch, from a cold disk perhaps. */
const IMPORT_MS_MAX = 120_000;
/** From dist/commands/ and src/commands/ alike. */
const PYTHON_FOLDER = fileURLToPath(new URL("../../python", import.meta.url));

/** Without fast kernels the linear attention of Qwen3.5 and its like is slow: on a GPU that is refused. */
const KERNELS_PROBE = `
import json, sys
sys.path.insert(0, sys.argv[1])
from forebay.engine.kernels import mending, reasons, slow_kernels
slow = slow_kernels()
print("\\n" + json.dumps({"reasons": reasons(slow), "mending": mending(slow)} if slow else None))
`;

/** The Python engines: the one that was named must be able to start; of another it is told only what it lacks. */
export async function examineEngine(call: Call): Promise<Finding[]> {
  const { values, sources } = call.settings;
  const named = sources.engine === "default" ? null : values.engine;
  if (named === "transformers") return startTransformers(call);
  const findings = [examinePython(call)];
  if (named === "vllm" && values.vllm.length === 0) findings.push(examineVllmProgram(call));
  return findings;
}

async function startTransformers(call: Call): Promise<Finding[]> {
  try {
    const { io, settings } = call;
    const hello = await withFirstEngine(io, settings.values, async (engine) => engine.hello);
    return describeHello(call, hello);
  } catch (error) {
    const hint = error instanceof RunError ? error.hint : undefined;
    return [
      broken("engine", `transformers: ${describeError(error)}`, hint ?? "name its Python with --python"),
    ];
  }
}

function describeHello(call: Call, { versions, devices }: Hello): Finding[] {
  const names = devices.map(({ name }) => name).join(", ");
  if (devices.some(({ seen }) => seen === false)) {
    const found = `transformers: ${names}: torch ${versions.torch} does not see it, and no run starts without it`;
    const fix =
      "see that nvidia-smi shows it, that torch is built for its driver, and that its name is right; " +
      "CUDA_VISIBLE_DEVICES= (nothing) for the CPU";
    return [broken("engine", found, fix)];
  }
  const started = ok("engine", `transformers: starts with ${pairs(versions)}, on ${names}`);
  return devices.some(({ uuid }) => uuid !== null) ? [started, ...examineKernels(call)] : [started];
}

/** Only by importing them, as the engine does, is it told whether they are of use with this torch and CUDA. */
function examineKernels({ io, settings }: Call): Finding[] {
  const python = choosePython(settings.values.python, io.env);
  const { status, stdout, stderr, error } = spawnSync(python, ["-c", KERNELS_PROBE, PYTHON_FOLDER], {
    env: engineEnvironment(io.env),
    encoding: "utf8",
    timeout: IMPORT_MS_MAX,
  });
  const told = "transformers: models with linear attention (Qwen3.5) are refused on a GPU";
  if (status !== 0) {
    const cause = error?.message ?? (stderr.trim().split("\n").at(-1) || `exit ${status}`);
    return [weak("engine", `${told}, if fast kernels are not there: ${cause}`, "only for those: see to it")];
  }
  // A package may print while it is imported.
  const answer = KernelsAnswer.parse(JSON.parse(stdout.trim().split("\n").at(-1)!));
  if (answer === null) return [];
  return [weak("engine", `${told} (${answer.reasons})`, `only for those: ${answer.mending}`)];
}

const KernelsAnswer = z.object({ reasons: z.string(), mending: z.string() }).nullable();

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
    timeout: IMPORT_MS_MAX,
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
