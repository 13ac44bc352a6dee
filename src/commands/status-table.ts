import { formatBytes } from "../base/bytes.ts";
import { plainText } from "../base/log.ts";
import type { StatusDocument } from "../run/status.ts";
import { tableLines } from "./io.ts";
import { hasEnded } from "./merge-parts.ts";
import { countText, rateText, secondsText } from "./progress-lines.ts";

/** The status document as a person reads it: the run, its parts where there are several, its engines. */
export function statusTable(document: StatusDocument, parts: StatusDocument[], source: string): string[] {
  const { run, extraction, spool, s3, bottleneck } = document;
  const { tokens, batches, eta } = extraction;
  // Of a run that has ended, or fell silent, only what stands is told: rates and advice would be history.
  const going = run.exit_code === null && run.state !== "lost";
  const isSeveral = parts.length > 1;
  const ifGoing = (text: string) => (going ? text : null);
  const ifUnderWay = (text: string) => (going && run.state !== "starting" ? text : null);
  const facts: [string, string | null][] = [
    ["run", `${run.address} (${run.id})`],
    [
      "state",
      `${run.state}${going && run.state !== "starting" ? `, ${run.phase}` : ""}, since ${run.state_since}`,
    ],
    [run.state === "starting" ? "at" : "reason", run.reason],
    ["next", run.action],
    [
      "committed",
      `${countText(extraction.total_processed)} of ${countText(extraction.total)} samples, ` +
        `${countText(batches.committed)} of ${countText(batches.total)} batches, ` +
        `${countText(tokens.done)} of ${countText(tokens.total)} tokens`,
    ],
    ["skipped", extraction.skipped === 0 ? null : countText(extraction.skipped)],
    ["rate", ifUnderWay(rateText(document))],
    [
      "to go",
      ifUnderWay(eta.p50_s === null ? eta.reason || "unknown" : `${secondsText(eta.p50_s)} (${eta.reason})`),
    ],
    [
      "spool",
      `${countText(spool.files)} packs, ${formatBytes(spool.bytes)} of ${formatBytes(spool.budget_bytes)}`,
    ],
    [
      "upload",
      ifUnderWay(
        `${s3.mb_per_s.toFixed(1)} MB/s, ${s3.inflight} of ${s3.limit} connections, ${countText(s3.retries)} retries`,
      ),
    ],
    [
      "store",
      s3.publish_mode === null ? null : `${s3.publish_mode}, verified by ${s3.verify_mode ?? "unknown"}`,
    ],
    ["limit", bottleneck.stage === null ? null : ifGoing(`${bottleneck.stage}: ${bottleneck.advice}`)],
    ["page", run.page_url === null || isSeveral ? null : ifGoing(run.page_url)],
    ["directory", isSeveral ? null : `${run.host}:${run.run_directory}`],
    ["as of", `${document.generated_at}, from ${source}`],
  ];
  const lines = tableLines(facts.flatMap(([name, value]) => (value === null ? [] : [[name, value]])));
  if (isSeveral || run.part.count > 1) lines.push("", ...partLines(parts));
  if (going && document.engines.length > 0) lines.push("", ...engineLines(document));
  for (const { level, text } of document.alerts) lines.push(`${level}: ${text}`);
  return lines.map((line) => plainText(line).replaceAll("\n", " "));
}

/** A line each, by their last heartbeats. */
export function partLines(parts: readonly StatusDocument[]): string[] {
  const rows = parts.map(({ run, extraction: { batches, tokens, last_commit_at }, heartbeat_at }) => [
    `${run.part.index}/${run.part.count}`,
    run.state,
    run.host,
    `${countText(batches.committed)} of ${countText(batches.total)}`,
    last_commit_at === null || hasEnded(run.state) ? "-" : countText(Math.round(tokens.rate)),
    heartbeat_at,
    run.reason ?? "",
  ]);
  const head = ["part", "state", "host", "batches", "tokens/s", "heartbeat", ""];
  return tableLines([head, ...rows], new Set([3, 4])).map((line) => plainText(line).replaceAll("\n", " "));
}

/** Slowest first: that one is worth a look. */
function engineLines({ engines }: StatusDocument): string[] {
  const slowestFirst = [...engines].sort((a, b) => (a.tokens_per_s ?? 0) - (b.tokens_per_s ?? 0));
  const rows = slowestFirst.map((engine) => [
    String(engine.shard),
    engine.state,
    engine.device ?? "cpu",
    engine.tokens_per_s === null ? "-" : countText(Math.round(engine.tokens_per_s)),
    countText(engine.tokens_done),
    String(engine.restarts),
    engine.gpu?.util == null ? "-" : `${engine.gpu.util} %`,
    engine.flops_share === null ? "-" : `${Math.round(engine.flops_share * 100)} %`,
    engine.last_error ?? "",
  ]);
  return tableLines(
    [["engine", "state", "device", "tokens/s", "tokens", "restarts", "gpu", "of peak", ""], ...rows],
    new Set([0, 3, 4, 5, 6, 7]),
  );
}
