import { formatBytes } from "../base/bytes.ts";
import { EXIT } from "../base/errors.ts";
import { share } from "../config/kinds.ts";
import { auditRun } from "../run/audit.ts";
import { loadStoredRun } from "../run/stored-run.ts";
import { printJson, printLine, say } from "./io.ts";
import { withStore } from "./open-store.ts";
import { countText } from "./progress-lines.ts";
import { runPlace } from "./run-place.ts";
import type { VerbSpec } from "./verb.ts";

/** Requests at a time: enough to hide a WAN's latency, few enough for any store. */
const PARALLEL = 16;
const FAULTS_SHOWN = 20;

export const verify: VerbSpec = {
  name: "verify",
  settings: "verify",
  summary: "audit a run from the store alone: every row once, every size, and stored bytes",
  arguments: [["[address]", "the run"]],
  options: [
    ["--sample <share>", "re-read this share of the packs, e.g. 1%"],
    ["--deep", "re-read every byte"],
  ],
  examples: [
    "forebay verify s3://bucket/prefix/name",
    "forebay verify file:demo-run/demo --deep",
    "forebay verify s3://bucket/prefix/name --sample 1% --json",
  ],
  async run(call) {
    const { io, options, json } = call;
    const place = runPlace(call);
    const sampled = options.sample === undefined ? 0 : share.parse(String(options.sample), "--sample", "");
    const report = await withStore(place.spec, io, async (store) => {
      const run = await loadStoredRun(store, { cacheDirectory: null, signal: io.signal });
      return auditRun(store, run, {
        share: options.deep === true ? 1 : sampled,
        random: Math.random,
        parallel: PARALLEL,
        onTraffic: (bytes, packs) => {
          if (packs > 0) say(io, `reading ${formatBytes(bytes)} of ${countText(packs)} packs from the store`);
        },
        signal: io.signal,
      });
    });
    for (const { key, message } of report.faults.slice(0, FAULTS_SHOWN)) say(io, `fault: ${key}: ${message}`);
    const more = report.faults.length - FAULTS_SHOWN;
    if (more > 0) say(io, `and ${countText(more)} faults more (--json lists all)`);
    for (const key of report.alienKeys.slice(0, FAULTS_SHOWN)) say(io, `alien: ${key}`);
    if (json) {
      printJson(io, report);
      return report.ok ? EXIT.done : EXIT.integrity;
    }
    const { rows } = report;
    printLine(io, `${report.ok ? "ok" : "NOT ok"}: ${place.address}`);
    printLine(
      io,
      `rows: ${countText(rows.planned)} planned, ${countText(rows.committed)} committed, ` +
        `${countText(rows.skipped)} skipped, ${countText(rows.missing)} missing, ` +
        `${countText(rows.duplicate)} duplicate, ${countText(rows.corrupt)} corrupt`,
    );
    printLine(
      io,
      `packs: ${countText(report.packs)}, ${formatBytes(report.bytes)}, ${countText(report.aliens)} alien keys; ` +
        `${countText(report.read.packs)} packs (${formatBytes(report.read.bytes)}) read again`,
    );
    if (!report.ok && rows.missing > 0) printLine(io, `next: forebay resume ${place.address} --model DIR`);
    return report.ok ? EXIT.done : EXIT.integrity;
  },
};
