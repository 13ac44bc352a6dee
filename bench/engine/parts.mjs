/** What the parts of `bench engine` share: where things lie, children, engines, batches of ids, medians. */
import { spawn } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { silentLog } from "../../dist/base/log.js";
import { Engine } from "../../dist/engine/engine.js";
import { ROOT } from "../support/program.mjs";

export const CACHE = join(ROOT, ".cache", "bench-engine");
export const MODEL = join(CACHE, "random-smollm2-135m");
mkdirSync(CACHE, { recursive: true });

/** A started and loaded engine. */
export async function startEngine(command, { model, taps, options }) {
  const engine = await Engine.start({ command, label: command.name, log: silentLog, stderrFile: null });
  await engine.load({ model, dtype: "auto", device: null, taps, options });
  return engine;
}

/** A child that answers each line with a line. */
export function speakTo(file, args) {
  const child = spawn(file, args, { stdio: ["pipe", "pipe", "inherit"] });
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  return {
    async ask(question) {
      child.stdin.write(`${JSON.stringify(question)}\n`);
      const { value, done } = await lines.next();
      if (done) throw new Error(`${file} ${args[0]} ended without an answer`);
      return JSON.parse(value);
    },
    end: () => child.stdin.end(),
  };
}

export function python(given) {
  const candidates = [given, join(ROOT, ".venv/bin/python"), join(ROOT, ".cache/venv/bin/python")];
  const found = candidates.find((path) => path !== undefined && existsSync(path));
  if (!found) {
    throw new Error(
      "torch and transformers are not there: node scripts/setup.mjs --python, or --python PATH",
    );
  }
  return found;
}

/** Batches of samples of ids, spread over the vocabulary and the same each time. */
export function batchesOf(lengths, vocab) {
  return lengths.map((samples, b) =>
    samples.map((tokens, s) =>
      Array.from({ length: tokens }, (_, t) => (b * 1_000_003 + s * 7_919 + t * 104_729) % vocab),
    ),
  );
}

/** Extract requests of `batches` into one file, and the file's bytes. */
export function requestsOf(batches, { file, taps, hidden }) {
  let bytes = 0;
  const requests = batches.map((batch, b) => ({
    attempt: 0,
    file,
    samples: batch.map((ids, s) => {
      const offset = bytes;
      bytes += ids.length * taps.length * hidden * 2;
      return { row: b * 1_000 + s, ids, offset };
    }),
  }));
  return { requests, bytes };
}

/** Seconds for all of them, outstanding at once as a run has them. */
export async function extractAll(engine, requests) {
  const startMs = performance.now();
  const answers = await Promise.all(requests.map((request) => engine.extract(request)));
  const seconds = (performance.now() - startMs) / 1_000;
  const failed = answers.flatMap((answer) => answer.failed);
  if (failed.length > 0) throw new Error(failed[0].message);
  return seconds;
}

/** CPU seconds so far of a process, of those that it has started, and of those of them that have ended. */
export function cpuSeconds(pid) {
  const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ")[1].split(" ");
  // utime, stime, cutime and cstime, in hundredths: proc(5), counted from the state.
  const own = [11, 12, 13, 14].reduce((sum, at) => sum + Number(fields[at]), 0) / 100;
  return childrenOf(pid).reduce((sum, child) => sum + cpuSeconds(child), own);
}

function childrenOf(pid) {
  return readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
    readFileSync(`/proc/${pid}/task/${thread}/children`, "utf8")
      .trim()
      .split(" ")
      .filter(Boolean)
      .map(Number),
  );
}

export function median(values) {
  return [...values].sort((a, b) => a - b)[values.length >> 1];
}

/** To three significant digits. */
export function short(x) {
  return Number(x.toPrecision(3));
}
