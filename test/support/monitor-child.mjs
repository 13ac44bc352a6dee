/**
 * A monitor in a process of its own, so that tests can kill it: `node monitor-child.mjs PORT [OPTIONS AS JSON]`.
 * Prints its URL. Options: state, hostile, bare (a run that knows nothing yet), s3 (its figures), tickMs, elapsedHours,
 * historyHours.
 * SIGUSR2 keeps its main thread busy until the file `blockedUntil` exists; it says "blocked" and "free".
 */
import { existsSync, mkdtempSync, rmSync, writeFileSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import { silentLog } from "../../dist/base/log.js";
import { History } from "../../dist/monitor/history.js";
import { encodeHistory } from "../../dist/monitor/history-file.js";
import { startMonitor } from "../../dist/monitor/monitor.js";

const [port, json = "{}"] = process.argv.slice(2);
const options = JSON.parse(json);

const HOSTILE =
  `<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>` +
  `\u001b[31mred\u001b[0m \u202Egnp.exe\u202C \u0007&lt;b&gt; ${"long".repeat(2_000)}`;

const run = scriptedRun({
  nowMs: Date.now,
  state: options.state,
  elapsedHours: options.elapsedHours,
  edit: (document) => {
    let edited = { ...document, run: { ...document.run, pid: process.pid } };
    if (options.s3) edited = { ...edited, s3: { ...edited.s3, ...options.s3 } };
    if (options.bare) edited = bare(edited);
    if (options.hostile) edited = hostile(edited);
    return edited;
  },
});
const history = new History();
run.fillHistory(history, options.historyHours ?? 0.5);
const published = () => ({ document: run.snapshot(), counters: run.counters() });
const first = published();
// The thread reads what a supervisor before this one left.
const scratch = mkdtempSync(join(tmpdir(), "forebay-monitor-"));
const historyFile = join(scratch, "history.json");
writeFileSync(historyFile, encodeHistory(first.document.run.id, history));
const monitor = await startMonitor({
  first,
  port: Number(port),
  nextFreePort: false,
  statusFile: null,
  historyFile,
  log: silentLog,
  pageDirectory: fileURLToPath(new URL("../../dist/web/", import.meta.url)),
});
rmSync(scratch, { recursive: true });
setInterval(() => monitor.publish(published()), options.tickMs ?? 200);
process.on("SIGUSR2", () => {
  writeSync(1, "blocked\n");
  while (!existsSync(options.blockedUntil));
  writeSync(1, "free\n");
});
console.log(monitor.url);

/** Every string that comes from a row, an engine, a server or a setting is somebody else's text. */
function hostile(document) {
  const { run, extraction, bottleneck, s3, gate, spool } = document;
  return {
    ...document,
    run: {
      ...run,
      name: `run ${HOSTILE}`,
      reason: HOSTILE,
      action: HOSTILE,
      host: HOSTILE,
      resume_command: HOSTILE,
      run_directory: HOSTILE,
      settings: { dataset: HOSTILE, [HOSTILE.slice(0, 60)]: "1" },
    },
    extraction: {
      ...extraction,
      eta: { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason: HOSTILE },
      skipped_rows: [{ row: 7, reason: HOSTILE }],
    },
    engines: document.engines.map((engine) => ({
      ...engine,
      name: HOSTILE,
      device: HOSTILE,
      last_error: HOSTILE,
    })),
    bottleneck: { ...bottleneck, cause: HOSTILE.slice(0, 100), advice: HOSTILE },
    s3: { ...s3, notes: [HOSTILE] },
    gate: { ...gate, report: HOSTILE },
    spool: { ...spool, directory: HOSTILE },
    money: { ...document.money, currency: "<b>" },
    alerts: [{ level: "error", text: HOSTILE, action: HOSTILE }],
    events_tail: [
      { at: new Date().toISOString(), level: "warn", event: `engine.stderr`, fields: { line: HOSTILE } },
      { at: new Date().toISOString(), level: "error", event: HOSTILE, fields: {} },
    ],
  };
}

/** The first second of a run: nothing measured, nothing known. */
function bare(document) {
  const { extraction, run, s3 } = document;
  return {
    ...document,
    run: { ...run, state: "starting", phase: "loading the model", resumed_from: null },
    extraction: {
      ...extraction,
      eta_hours: null,
      eta: { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason: "measuring: 0 of 5 batches" },
      shards: [],
      skipped_rows: [],
      skipped: 0,
      last_commit_at: null,
    },
    engines: [],
    stages: [],
    bottleneck: { stage: null, cause: "unknown", confidence: 0, advice: "Measuring." },
    engine_seconds_lost: null,
    s3: { ...s3, p50_ms: null, p95_ms: null, publish_mode: null, verify_mode: null },
    money: null,
    gate: { state: "not-run", report: null },
    events_tail: [],
  };
}
