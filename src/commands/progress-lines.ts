import { formatBytes } from "../base/bytes.ts";
import { plainText } from "../base/log.ts";
import type { RunState, StatusDocument } from "../run/status.ts";

/** How wide and how coloured lines may be. */
export interface LineStyle {
  columns: number;
  colour: boolean;
}

const LINES_MAX = 12;
const BAR_CELLS_MAX = 40;
const COLOURS: Record<RunState, number> = {
  starting: 36,
  running: 32,
  stalled: 33,
  degraded: 33,
  blocked: 31,
  stopping: 36,
  stopped: 36,
  preempted: 33,
  done: 32,
  done_with_skips: 33,
  failed: 31,
  lost: 31,
};

/** The block that a terminal shows: at most 12 lines, none wider than the terminal. */
export function progressBlock(status: StatusDocument, style: LineStyle): string[] {
  const { run, extraction, spool, s3, bottleneck } = status;
  const { tokens, batches } = extraction;
  // A start has no figures yet; what it is at says its reason.
  const isStarting = run.state === "starting";
  const isKnown = tokens.total > 0;
  const doing = isStarting ? (run.reason ?? run.phase) : `${run.phase}${run.reason ? `: ${run.reason}` : ""}`;
  const lines = [
    `${stateChip(run.state, style)} ${run.name}  ${doing}`,
    ...(run.action ? [`  next: ${run.action}`] : []),
    ...(isKnown
      ? [
          `${bar(tokens, style)} ${percent(tokens.done, tokens.total)}${isStarting ? "" : `  ${etaText(status)}`}`,
          `  ${countText(extraction.total_processed)} of ${countText(extraction.total)} samples, ` +
            `${countText(batches.committed)} of ${countText(batches.total)} batches` +
            `${extraction.skipped ? `, ${countText(extraction.skipped)} skipped` : ""}`,
        ]
      : []),
    ...(isStarting ? [] : [`  ${rateText(status)}`]),
    `  engines ${enginesText(status)}`,
    `  spool   ${formatBytes(spool.bytes)} of ${formatBytes(spool.budget_bytes)}` +
      `${spool.volatile ? " (tmpfs: gone with the power)" : ""}`,
    ...(s3.limit > 0
      ? [
          `  upload  ${s3.mb_per_s.toFixed(1)} MB/s, ${s3.inflight} of ${s3.limit} connections` +
            `${s3.retries ? `, ${countText(s3.retries)} retries` : ""}`,
        ]
      : []),
    ...(bottleneck.stage ? [`  limit   ${bottleneck.stage}: ${bottleneck.advice}`] : []),
    ...status.alerts.slice(0, 2).map((alert) => `  ${alert.level}: ${alert.text}`),
    ...(run.page_url ? [`  page    ${run.page_url}`] : []),
  ];
  return lines.slice(0, LINES_MAX).map((line) => cut(plain(line, style), style.columns));
}

/** One line for logs and CI: everything that matters at a glance. */
export function progressLine(status: StatusDocument): string {
  const { run, extraction, s3, spool } = status;
  const { tokens } = extraction;
  const samples = `${countText(extraction.total_processed)}/${countText(extraction.total)} samples`;
  const share = `${run.state} ${percent(tokens.done, tokens.total)}`;
  const reason = [...(run.reason ? [run.reason] : []), ...(run.action ? [`next: ${run.action}`] : [])];
  const parts =
    run.state === "starting"
      ? [`starting: ${run.reason ?? run.phase}`, ...(tokens.total > 0 ? [`${samples} are committed`] : [])]
      : run.exit_code === null
        ? [
            share,
            samples,
            rateText(status),
            `upload ${s3.mb_per_s.toFixed(1)} MB/s`,
            `spool ${formatBytes(spool.bytes)}`,
            etaText(status),
            ...reason,
          ]
        : // Of a run that has ended rates are history.
          [share, samples, ...(spool.files > 0 ? [`spool ${formatBytes(spool.bytes)}`] : []), ...reason];
  return plainText(parts.join(", ")).replaceAll(/\s*\n\s*/g, "; ");
}

/** Rates are of what was committed: before the first commit there is none, and not 0. */
export function rateText({ extraction: { tokens, agg_rate, last_commit_at } }: StatusDocument): string {
  if (last_commit_at === null) return "nothing committed yet in this session";
  return `${countText(Math.round(tokens.rate))} tokens/s, ${agg_rate.toFixed(1)} samples/s`;
}

/** 1234567 as "1,234,567". */
export function countText(count: number): string {
  return count.toLocaleString("en-US");
}

/** 5400 as "1 h 30 min"; two units at most. */
export function secondsText(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function etaText({ run, extraction: { eta } }: StatusDocument): string {
  if (run.state === "done" || run.state === "done_with_skips") return "all committed";
  if (eta.p50_s === null) return `no estimate yet${eta.reason ? ` (${eta.reason})` : ""}`;
  const band =
    eta.p10_s === null || eta.p90_s === null
      ? ""
      : ` (${secondsText(eta.p10_s)} to ${secondsText(eta.p90_s)})`;
  return `${secondsText(eta.p50_s)} to go${band}`;
}

function percent(done: number, total: number): string {
  // Rounded down, so that 100 % means all of it.
  return total === 0 ? "0.0 %" : `${(Math.floor((done / total) * 1000) / 10).toFixed(1)} %`;
}

/** Committed, uploaded, spooled and in-engine tokens stacked in one bar. */
function bar(tokens: StatusDocument["extraction"]["tokens"], { columns }: LineStyle): string {
  const cells = Math.max(10, Math.min(BAR_CELLS_MAX, columns - 40));
  const upTo = (amount: number) => (tokens.total === 0 ? 0 : Math.floor((amount / tokens.total) * cells));
  const committed = upTo(tokens.done);
  const stored = upTo(tokens.done + tokens.uploaded + tokens.spooled);
  const begun = upTo(tokens.done + tokens.uploaded + tokens.spooled + tokens.in_engine);
  const fill = "#".repeat(committed) + "=".repeat(stored - committed) + "-".repeat(begun - stored);
  return `[${fill.slice(0, cells).padEnd(cells)}]`;
}

function enginesText({ engines }: StatusDocument): string {
  if (engines.length === 0) return "none yet";
  const states = new Map<string, number>();
  for (const { state } of engines) states.set(state, (states.get(state) ?? 0) + 1);
  const restarts = engines.reduce((sum, engine) => sum + engine.restarts, 0);
  const counts = [...states].map(([state, count]) => `${count} ${state}`).join(", ");
  return restarts ? `${counts}, ${restarts} restarts` : counts;
}

function stateChip(state: RunState, style: LineStyle): string {
  const name = state.replaceAll("_", " ").toUpperCase();
  return style.colour ? `\u001b[${COLOURS[state]};1m${name}\u001b[0m` : name;
}

/** Text from outside is made harmless; our own colour, which stands at the start of a line only, is kept. */
function plain(line: string, style: LineStyle): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it is our own colour
  const chip = style.colour ? (/^\u001b\[\d+;1m[A-Z ]+\u001b\[0m/.exec(line)?.[0] ?? "") : "";
  return chip + plainText(line.slice(chip.length)).replaceAll("\n", " ");
}

/** Cut to the terminal's width: a wrapped line would break the redrawing. Colour takes no width. */
function cut(line: string, columns: number): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it is our own colour
  const chip = /^\u001b\[\d+;1m[A-Z ]+\u001b\[0m/.exec(line)?.[0] ?? "";
  const width = columns - 1 - (chip ? chip.length - "\u001b[32;1m\u001b[0m".length : 0);
  const rest = line.slice(chip.length);
  return rest.length <= width ? line : `${chip}${rest.slice(0, Math.max(0, width - 1))}…`;
}
