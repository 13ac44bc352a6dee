import { existsSync, mkdirSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { formatBytes } from "../base/bytes.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { resolveSettings } from "../config/resolve.ts";
import { auditRun } from "../run/audit.ts";
import { loadStoredRun } from "../run/stored-run.ts";
import { type Io, printJson, printLine, say } from "./io.ts";
import { withStore } from "./open-store.ts";
import { packagePath } from "./package-info.ts";
import { countText } from "./progress-lines.ts";
import { runPlace } from "./run-place.ts";
import type { Call, VerbSpec } from "./verb.ts";

const DIRECTORY = "demo-run";
const ADDRESS = `file:${DIRECTORY}/demo`;

export const demo: VerbSpec = {
  name: "demo",
  settings: null,
  outlivesReader: true,
  summary: "a whole run in a minute: a tiny trained model, 200 conversations, two engines, a local directory",
  examples: ["forebay demo", "forebay demo --json"],
  async run(call) {
    const { io, json } = call;
    const startMs = performance.now();
    const model = packagePath("demo/tiny-qwen3");
    const dataset = join(io.directory, DIRECTORY, "dataset");
    await tokenizeDemo(io, model, dataset);
    const settings = resolveSettings({
      verb: "run",
      flags: {
        model,
        dataset,
        taps: "1,3,5",
        engine: "onnx",
        engines: "2",
        spool: join(DIRECTORY, "spool"),
        "spool-bytes": "256MiB",
        "disk-floor": "64MiB",
        "pack-bytes": "4MiB",
        "run-dir": join(DIRECTORY, "state"),
        progress: json ? "quiet" : "auto",
      },
      env: {},
      file: null,
      directory: io.directory,
    });
    const demoCall: Call = { ...call, settings, address: ADDRESS };
    const place = runPlace(demoCall);
    const { superviseOnce } = await import("./supervise.ts");
    const result = await superviseOnce({
      io,
      verb: "run",
      place,
      settings,
      json: false,
      kept: false,
      sayResult: false,
    });
    if (result.exit !== EXIT.done && result.exit !== EXIT.doneWithSkips) return result.exit;
    const resumed = result.document.run.resumed_from;
    const { report, hidden } = await withStore(place.spec, io, async (store) => {
      const run = await loadStoredRun(store, { cacheDirectory: null, signal: io.signal });
      const report = await auditRun(store, run, {
        share: 1,
        random: Math.random,
        parallel: 4,
        signal: io.signal,
      });
      return { report, hidden: run.plan.options.shape.hidden };
    });
    if (!report.ok) throw notOk(report.faults[0]?.message ?? "rows are missing");
    const seconds = (performance.now() - startMs) / 1000;
    if (json) {
      printJson(io, {
        address: ADDRESS,
        ...report,
        seconds,
        nothing_to_do: nothingToDo(resumed, report.packs),
      });
      return EXIT.done;
    }
    const { rows } = report;
    const made = nothingToDo(resumed, report.packs)
      ? "Nothing to do: everything was there already, and every byte was read again and is right."
      : `Made in ${seconds.toFixed(0)} s, and every byte read back and verified:`;
    printLine(io, made);
    printLine(
      io,
      `  ${countText(rows.committed)} conversations, hidden states of blocks 1, 3 and 5 (bf16, hidden ${hidden}),` +
        ` in ${countText(report.packs)} packs, ${formatBytes(report.bytes)}`,
    );
    printLine(
      io,
      `Where it lies:   ${relative(io.directory, join(io.directory, DIRECTORY, "demo"))}/   (its address is ${ADDRESS})`,
    );
    // By `npm start` nothing is on the PATH yet, and the folder is the package's.
    const command = io.env.npm_lifecycle_event ? "node dist/cli.js" : "forebay";
    printLine(io, `Read one sample: ${command} read ${ADDRESS} 7 --check`);
    printLine(
      io,
      `Try next:        ${command} taps --model YOUR_MODEL, then ${command} init s3://bucket/prefix/name`,
    );
    return EXIT.done;
  },
};

function nothingToDo(resumed: { batches: number } | null, packs: number): boolean {
  return resumed !== null && resumed.batches === packs;
}

/** The dataset appears as a whole or not at all, so that one which is there is done. */
async function tokenizeDemo(io: Io, modelDir: string, output: string): Promise<void> {
  if (existsSync(output)) return;
  say(io, "tokenising 200 conversations with the model's chat template");
  mkdirSync(dirname(output), { recursive: true });
  // Only the first demo tokenises.
  const { tokenizeConversations } = await import("../dataset/tokenize.ts");
  await tokenizeConversations({
    modelDir,
    input: packagePath("demo/gsm8k-200.jsonl"),
    output,
    signal: io.signal,
  });
}

function notOk(message: string): RunError {
  return new RunError({
    op: "verify demo",
    subject: ADDRESS,
    message,
    safe: "nothing of it is used elsewhere",
    hint: `remove ${DIRECTORY}/ and run forebay demo again`,
    exit: EXIT.integrity,
  });
}
