import { formatBytes } from "../base/bytes.ts";
import { describeTrainerUses, type TrainerUse } from "../model/trainers.ts";
import { sampleBytes } from "../pack/layout.ts";
import { amount, duration, type Estimate, estimateRun, type Resources, terabytes } from "./estimate.ts";
import { type Plan, type PlanTotals, planTotals, reasonOf, type SkipReason } from "./plan.ts";

/** One bar: rows whose tokens lie in [from, to]. */
export interface LengthBin {
  from: number;
  to: number;
  rows: number;
  tokens: number;
}

/** What `forebay plan` has to say; `planReportJson` is its --json, `renderPlanReport` its text. */
export interface PlanReport {
  options: Plan["options"];
  totals: PlanTotals;
  lengths: { median: number; p90: number; p99: number; longest: number; histogram: LengthBin[] };
  bytesPerToken: number;
  /** The first rows that are skipped, ascending. */
  skippedRows: { row: number; reason: SkipReason }[];
  /** What each trainer can make of a run with these taps. */
  trainers: TrainerUse[];
  estimate: Estimate;
}

/** So many skipped rows are named one by one; the counts by reason are always whole. */
const SKIPPED_ROWS_SHOWN = 20;
const BAR_CHARS = 28;
const COLUMNS = 100;

export function planReport(plan: Plan, trainers: TrainerUse[], resources: Resources): PlanReport {
  const totals = planTotals(plan);
  const sorted = plan.tokens.slice().sort();
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
  return {
    options: plan.options,
    totals,
    lengths: {
      median: at(0.5),
      p90: at(0.9),
      p99: at(0.99),
      longest: totals.longestTokens,
      histogram: lengthHistogram(plan.tokens),
    },
    bytesPerToken: sampleBytes(1, plan.options.shape),
    skippedRows: Array.from(plan.skippedRows.subarray(0, SKIPPED_ROWS_SHOWN), (row, i) => ({
      row,
      reason: reasonOf(plan.skippedReasons[i]!),
    })),
    trainers,
    estimate: estimateRun(totals, resources),
  };
}

/** The report as plain JSON with the names of the status document's kind: snake case, bytes, seconds, null for unknown. */
export function planReportJson(report: PlanReport): Record<string, unknown> {
  const { totals, lengths, estimate, options } = report;
  return {
    rows: totals.rows,
    planned: totals.planned,
    skipped: totals.rows - totals.planned,
    skipped_by_reason: Object.fromEntries(totals.skipped.map(({ reason, rows }) => [reason, rows])),
    skipped_rows: report.skippedRows,
    tokens: totals.tokens,
    lengths,
    bytes: totals.bytes,
    bytes_per_token: report.bytesPerToken,
    objects: totals.batches,
    pack_bytes_max: options.packBytesMax,
    largest_pack_bytes: totals.largestPackBytes,
    order: options.order,
    seed: options.seed,
    requests: estimate.requests,
    compute_hours: estimate.computeHours,
    upload_hours: estimate.uploadHours,
    hours: estimate.hours,
    limit: estimate.limit,
    gpus_fed: estimate.gpusFed,
    uplink_needed_bytes_per_s: estimate.uplinkNeededBytesPerS,
    spool_lasts_s: estimate.spoolLastsS,
    spool_bytes_min: estimate.spoolBytesMin,
    money: {
      currency: estimate.money.currency,
      run: estimate.money.run,
      storage_per_month: estimate.money.storagePerMonth,
      epoch: estimate.money.epoch,
    },
    trainers: report.trainers,
    notes: estimate.sentences,
  };
}

/** The report as text of at most 100 columns where words allow it; no colours, no final newline. */
export function renderPlanReport(report: PlanReport): string {
  const { totals, lengths, estimate, options } = report;
  const { money, requests } = estimate;
  const lines = [
    line("rows", `${count(totals.planned)} planned${skippedText(totals)}`),
    line(
      "tokens",
      `${count(totals.tokens)}; median ${count(lengths.median)}, 90 % up to ${count(lengths.p90)}, ` +
        `99 % up to ${count(lengths.p99)}, longest ${count(lengths.longest)}`,
    ),
    ...histogramLines(lengths.histogram, totals.tokens),
    line("states", `${terabytes(totals.bytes)}, ${count(report.bytesPerToken)} bytes a token`),
    line(
      "packs",
      `${count(totals.batches)} objects, packs of ${formatBytes(options.packBytesMax)}, the largest ${formatBytes(totals.largestPackBytes)}`,
    ),
    line(
      "requests",
      `${count(requests.put)} PUT, ${count(requests.head)} HEAD, ${count(requests.list)} LIST at each start`,
    ),
  ];
  const times = [
    ["compute", estimate.computeHours],
    ["upload", estimate.uploadHours],
  ] as const;
  const known = times.flatMap(([what, hours]) =>
    hours === null ? [] : [`${what} ${duration(3600 * hours)}`],
  );
  if (known.length > 0) lines.push(line("time", known.join(", ")));
  const prices = [
    ["run", money.run],
    ["storage a month", money.storagePerMonth],
    ["one epoch read back", money.epoch],
  ] as const;
  const costs = prices.flatMap(([what, value]) =>
    value === null ? [] : [`${what} ${amount(money.currency, value)}`],
  );
  if (costs.length > 0) lines.push(line("money", costs.join(", ")));
  if (report.skippedRows.length > 0) {
    const more = totals.rows - totals.planned - report.skippedRows.length;
    const named = report.skippedRows.map(({ row, reason }) => `${row} ${reason}`).join(", ");
    lines.push(line("skipped", `rows ${named}${more > 0 ? `, and ${count(more)} more` : ""}`));
  }
  const uses = describeTrainerUses(report.trainers);
  lines.push(...uses.map((use, i) => line(i === 0 ? "trainers" : "", use)));
  if (estimate.sentences.length > 0) lines.push("", ...estimate.sentences);
  return lines.flatMap(wrap).join("\n");
}

/** Rows by powers of two of their tokens, from the shortest to the longest bin that holds any. */
export function lengthHistogram(tokens: Uint32Array): LengthBin[] {
  const bins = Array.from({ length: 33 }, (_, power) => ({
    from: 2 ** power,
    to: 2 ** (power + 1) - 1,
    rows: 0,
    tokens: 0,
  }));
  for (let i = 0; i < tokens.length; i += 1) {
    const bin = bins[31 - Math.clz32(tokens[i]!)]!;
    bin.rows += 1;
    bin.tokens += tokens[i]!;
  }
  const first = bins.findIndex(({ rows }) => rows > 0);
  const last = bins.findLastIndex(({ rows }) => rows > 0);
  return first < 0 ? [] : bins.slice(first, last + 1);
}

function histogramLines(histogram: LengthBin[], tokens: number): string[] {
  const most = Math.max(...histogram.map(({ rows }) => rows));
  const labels = histogram.map(({ from, to }) => (from === to ? count(from) : `${count(from)}-${count(to)}`));
  const labelChars = Math.max(...labels.map((label) => label.length));
  const rowsChars = Math.max(...histogram.map(({ rows }) => count(rows).length));
  return histogram.map((bin, i) => {
    // Rows that are there must show, however few.
    const chars = bin.rows === 0 ? 0 : Math.max(1, Math.round((BAR_CHARS * bin.rows) / most));
    const share = ((100 * bin.tokens) / tokens).toFixed(1);
    return line(
      "",
      `${labels[i]!.padStart(labelChars)} |${"#".repeat(chars).padEnd(BAR_CHARS)}| ${count(bin.rows).padStart(rowsChars)} rows, ${share.padStart(5)} % of the tokens`,
    );
  });
}

function skippedText(totals: PlanTotals): string {
  if (totals.skipped.length === 0) return ", none skipped";
  const reasons = totals.skipped.map(({ reason, rows }) => `${count(rows)} ${reason}`).join(", ");
  return ` of ${count(totals.rows)}, ${count(totals.rows - totals.planned)} skipped (${reasons})`;
}

/** Breaks a long line between words; what follows stands under its text. */
function wrap(text: string): string[] {
  const isLine = /^(?:(?:rows|tokens|states|packs|requests|time|money|skipped|trainers) | {10})/.test(text);
  const indent = " ".repeat(isLine ? 10 : 0);
  const lines: string[] = [];
  let rest = text;
  while (rest.length > COLUMNS) {
    const cut = rest.lastIndexOf(" ", COLUMNS);
    if (cut <= indent.length) break;
    lines.push(rest.slice(0, cut));
    rest = indent + rest.slice(cut + 1);
  }
  return [...lines, rest];
}

function line(name: string, text: string): string {
  return `${name.padEnd(10)}${text}`;
}

function count(n: number): string {
  return n.toLocaleString("en-US");
}
