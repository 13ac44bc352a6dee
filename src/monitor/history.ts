import type { HistoryPoint, StatusDocument } from "../run/status.ts";

/** How closely the past is kept: every second for ten minutes, every ten for six hours, every minute for a week. */
const TIERS = [
  { stepS: 1, keepS: 600 },
  { stepS: 10, keepS: 6 * 3_600 },
  { stepS: 60, keepS: 7 * 86_400 },
] as const;

/** What one chart line of a week needs at most; more than a screen has pixels for helps nobody. */
const ANSWER_POINTS_MAX = 2_000;

const FIELDS = [
  "tokens_per_s",
  "produced_mb_s",
  "uploaded_mb_s",
  "spool_bytes",
  "s3_p50_ms",
  "s3_p95_ms",
  "s3_errors_per_s",
  "inflight",
  "limit",
  "gpu_util",
] as const satisfies readonly Exclude<keyof HistoryPoint, "t">[];

/** One array a field, all of the length of `t` (Unix seconds, rising): the shape that charts want. */
export type HistoryColumns = { t: number[] } & Record<(typeof FIELDS)[number], (number | null)[]>;

/**
 * The recent past of a run for its charts: at most about 13,000 points however long the run. Each coarser tier
 * holds means of the finer one, so a spike shows lower the older it is, and a time without points stays a gap.
 */
export class History {
  /** Finest first. A tier's points end where the next finer tier's begin. */
  readonly #tiers: HistoryPoint[][] = TIERS.map(() => []);

  /** `point.t` must be later than the last one's by half a step or it is ignored (a clock set back included). */
  add(point: HistoryPoint): void {
    const finest = this.#tiers[0]!;
    const last = finest.at(-1) ?? this.#tiers[1]!.at(-1) ?? this.#tiers[2]!.at(-1);
    if (last && point.t < last.t + TIERS[0].stepS / 2) return;
    finest.push(point);
    for (const [index, tier] of TIERS.entries()) this.#age(index, point.t - tier.keepS);
  }

  /** Points with t > `afterS`, thinned to what a chart can show. */
  since(afterS: number, pointsMax = ANSWER_POINTS_MAX): HistoryColumns {
    const points = this.#tiers.toReversed().flatMap((tier) => tier.filter((point) => point.t > afterS));
    const every = Math.ceil(points.length / pointsMax);
    const thinned = every <= 1 ? points : chunksOf(points, every).map(meanPoint);
    const columns = { t: thinned.map((point) => point.t) } as HistoryColumns;
    for (const field of FIELDS) columns[field] = thinned.map((point) => point[field]);
    return columns;
  }

  /** The oldest point's time; null before the first. */
  beganS(): number | null {
    return this.#tiers.toReversed().find((tier) => tier.length > 0)?.[0]?.t ?? null;
  }

  /** All points, oldest first: what `restore` takes. */
  points(): HistoryPoint[] {
    return this.#tiers.toReversed().flat();
  }

  /** Begins anew with `points` of any order (of a supervisor before this one, or of two sources). */
  restore(points: readonly HistoryPoint[]): void {
    for (const tier of this.#tiers) tier.length = 0;
    for (const point of points.toSorted((a, b) => a.t - b.t)) this.add(point);
  }

  /** Moves points of tier `index` older than `beforeS` into the next tier, one mean a step; the last tier forgets. */
  #age(index: number, beforeS: number): void {
    const tier = this.#tiers[index]!;
    const coarser = TIERS[index + 1];
    if (!coarser) {
      while (tier[0] && tier[0].t < beforeS) tier.shift();
      return;
    }
    // Only whole steps move, or the same step would be written twice.
    const boundaryS = Math.floor(beforeS / coarser.stepS) * coarser.stepS;
    const count = tier.findIndex((point) => point.t >= boundaryS);
    if (count <= 0) return;
    const steps = new Map<number, HistoryPoint[]>();
    for (const point of tier.splice(0, count)) {
      const step = Math.floor(point.t / coarser.stepS);
      const points = steps.get(step);
      if (points) points.push(point);
      else steps.set(step, [point]);
    }
    this.#tiers[index + 1]!.push(...[...steps.values()].map(meanPoint));
  }
}

/** The way back from `since`. */
export function pointsOf(columns: HistoryColumns): HistoryPoint[] {
  return columns.t.map((t, i) => {
    const point = { t } as HistoryPoint;
    // Kept by an older version, it may lack a column.
    for (const field of FIELDS) point[field] = columns[field]?.[i] ?? null;
    return point;
  });
}

/**
 * The chart point of `document`, with rates of the errors since `previous`. GPU use is the mean over the GPUs
 * that report it.
 */
export function historyPoint(document: StatusDocument, previous: StatusDocument | null): HistoryPoint {
  const t = Date.parse(document.generated_at) / 1_000;
  const elapsedS = previous ? t - Date.parse(previous.generated_at) / 1_000 : 0;
  const errors = errorCount(document) - (previous ? errorCount(previous) : 0);
  const rateOf = (name: string) => document.stages.find((stage) => stage.name === name)?.rate ?? null;
  const producedPerS = rateOf("compute");
  // While a run is starting there is nothing to measure, which is not 0.
  const hasUploads = document.s3.limit > 0;
  return rounded({
    t,
    tokens_per_s: document.extraction.last_commit_at === null ? null : document.extraction.tokens.rate,
    produced_mb_s: producedPerS === null ? null : producedPerS / 1e6,
    uploaded_mb_s: hasUploads ? document.s3.mb_per_s : null,
    spool_bytes: document.spool.bytes,
    s3_p50_ms: document.s3.p50_ms,
    s3_p95_ms: document.s3.p95_ms,
    // Counts start again with the process: a negative difference is a restart, not an error.
    s3_errors_per_s: elapsedS > 0 && errors >= 0 ? errors / elapsedS : null,
    inflight: hasUploads ? document.s3.inflight : null,
    limit: hasUploads ? document.s3.limit : null,
    gpu_util: mean(document.engines.map((engine) => engine.gpu?.util ?? null)),
  });
}

/** As exact as a chart can show, and short where it is written down or sent. */
function rounded(point: HistoryPoint): HistoryPoint {
  for (const field of FIELDS) {
    const value = point[field];
    if (value !== null) point[field] = sixDigits(value);
  }
  return point;
}

function errorCount(document: StatusDocument): number {
  return document.s3.retries + document.s3.verify_failures;
}

function meanPoint(points: HistoryPoint[]): HistoryPoint {
  const point = { t: points[points.length - 1]!.t } as HistoryPoint;
  for (const field of FIELDS) point[field] = mean(points.map((each) => each[field]));
  return point;
}

/** The mean of what is known; null when nothing is. */
function mean(values: (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return null;
  return sixDigits(known.reduce((sum, value) => sum + value, 0) / known.length);
}

function sixDigits(value: number): number {
  return Number(value.toPrecision(6));
}

function chunksOf<T>(items: T[], size: number): T[][] {
  const chunks: T[][] = [];
  for (let begin = 0; begin < items.length; begin += size) chunks.push(items.slice(begin, begin + size));
  return chunks;
}
