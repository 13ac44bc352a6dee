import { availableParallelism, tmpdir, totalmem } from "node:os";
import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import { formatBytes } from "../base/bytes.ts";
import { describeError, EXIT, RunError } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import type { Resolved } from "../config/resolve.ts";
import { readModelConfig } from "../model/config.ts";
import { watchGpus } from "../monitor/nvidia-smi.ts";
import { broken, type Finding, ok, weak } from "./doctor-checks.ts";
import { examineEngine } from "./doctor-engine.ts";
import { examineSpool } from "./doctor-spool.ts";
import { examineStore } from "./doctor-store.ts";
import { examineVllm } from "./doctor-vllm.ts";
import { printJson, printLine } from "./io.ts";
import { storePlace } from "./run-place.ts";
import type { Call, VerbSpec } from "./verb.ts";

/** nvidia-smi answers in a second, or is not there. */
const GPU_LOOK_MS = 2_500;

export const doctor: VerbSpec = {
  name: "doctor",
  settings: "doctor",
  summary: "try the store (with timed uploads), the spool's disk, the model and the engines; say what to fix",
  arguments: [["[address]", "the run, or the store, to try"]],
  examples: [
    "forebay doctor s3://bucket/prefix --endpoint https://s3.example.com",
    "forebay doctor s3://bucket/prefix --spool /scratch/spool --model models/Qwen3-8B --json",
    "forebay doctor --engine transformers --python venv/bin/python --model models/Qwen3-8B",
  ],
  async run(call) {
    const { io, json } = call;
    const findings: Finding[] = [];
    for await (const finding of examine(call)) {
      findings.push(finding);
      if (!json) printLine(io, findingText(finding));
    }
    const brokenCount = findings.filter(({ state }) => state === "broken").length;
    if (json) printJson(io, { ok: brokenCount === 0, findings });
    else printLine(io, brokenCount === 0 ? "ready" : `${brokenCount} to fix before a run`);
    return findings.some(({ state, about }) => state === "broken" && about === "store")
      ? EXIT.store
      : brokenCount > 0
        ? EXIT.configuration
        : EXIT.done;
  },
};

async function* examine(call: Call): AsyncGenerator<Finding> {
  const { io, settings } = call;
  const { values } = settings;
  if (call.address === null) {
    yield weak("store", "no address was given, so no store was tried", "forebay doctor s3://bucket/prefix");
  } else {
    yield* await examineStore(storePlace(call), io.signal);
  }
  const spool = values.spool ?? join(tmpdir(), "forebay-doctor");
  yield* examineSpool(spool, values.spool === null ? 0 : values.spoolBytes);
  yield values.model === null
    ? weak("model", "no model was given, so none was read", "forebay doctor --model DIR")
    : examineModel(values.model, settings);
  yield ok("engine", `onnx: ${availableParallelism()} cores, ${formatBytes(totalmem())} of memory`, {
    cores: availableParallelism(),
    memory_bytes: totalmem(),
  });
  yield* await examineEngine(call);
  yield* await examineVllm(values.vllm, values.model);
  yield* await examineGpus(call);
}

function examineModel(directory: string, { values, sources }: Resolved): Finding {
  try {
    const model = readModelConfig(directory);
    const found = `${model.architecture}: ${model.blocks} blocks, hidden ${model.hidden}, positions ${model.positions ?? "unknown"}`;
    if (values.engine !== "onnx" || model.decoder) return ok("model", found);
    const told = sources.engine === "default" ? weak : broken;
    return told("model", `${found}; the onnx engine does not run it`, "--engine transformers runs it");
  } catch (error) {
    const hint = error instanceof RunError ? error.hint : undefined;
    return broken("model", describeError(error), hint ?? "name a Hugging Face model directory");
  }
}

async function examineGpus({ io }: Call): Promise<Finding[]> {
  const watch = watchGpus({ env: io.env, log: silentLog, nowMs: () => performance.now() });
  try {
    for (let waitedMs = 0; waitedMs < GPU_LOOK_MS && watch.readings().length === 0; waitedMs += 100) {
      await sleep(100, io.signal);
    }
    const cards = watch.readings();
    if (cards.length === 0) return [ok("gpu", "none seen: the onnx engine runs on CPUs")];
    return cards.map(({ gpu }) =>
      ok("gpu", `${gpu.index}: ${gpu.mem_total === null ? "memory unknown" : formatBytes(gpu.mem_total)}`),
    );
  } finally {
    watch.close();
  }
}

function findingText({ about, state, found, fix }: Finding): string {
  const sign = { ok: "ok    ", weak: "weak  ", broken: "BROKEN" }[state];
  return `${sign}  ${about.padEnd(6)}  ${found}${fix === null ? "" : `\n                fix: ${fix}`}`;
}
