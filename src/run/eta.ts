import type { StatusDocument } from "./status.ts";

export type Eta = StatusDocument["extraction"]["eta"];

/** An amount of work: what a forward costs grows with tokens, and its attention with their squares. */
export interface Work {
  tokens: number;
  /** Sum of tokens * tokens over the samples. */
  tokensSquared: number;
}

export interface EtaInput {
  /** Monotonic seconds, of the same clock as the log's. */
  nowS: number;
  /** Unix milliseconds of the same moment, for `finish_at`. */
  nowMs: number;
  log: EtaLog;
  /** Not yet computed by any engine; what is inside one counts as not computed. */
  toCompute: Work;
  /** Pack bytes that the store has not yet confirmed, computed or not. */
  bytesToVerify: number;
  /** Batches outstanding at once over all engines; that many finish together at first. */
  slots: number;
  /** From the end of a batch to its confirmation with nothing in the way. Default 0. */
  drainS?: number;
  /**
   * What attention adds to a token's cost for each token of its sample, as a share of the rest of its cost:
   * about hidden * blocks / parameters. Only a first guess, corrected by what is measured. Default 0.
   */
  attentionShare?: number;
}

const BATCHES_MIN = 5;
const SECONDS_MIN = 60;
/** Silence after which the past says nothing about the future. */
const SILENCE_S_MIN = 120;
const BINS_MAX = 32;
/** Marks kept; above it neighbours are joined, so a run of a million batches costs as much as one of a thousand. */
const MARKS_MAX = 512;
/** Of the weight of what was measured: half after this share of the session, so that a lost engine shows soon. */
const HALF_LIFE_SHARE = 0.35;
const HALF_LIFE_S_MIN = 180;
/**
 * Hours bring what minutes did not show (heat, neighbours on the link): no band is narrower than this. In
 * bench/recordings a neighbour's quarter minute made the median 13 % wrong for a while.
 */
const SPREAD_MIN = 0.08;
/** Standard deviations from the median to each edge: a little wide, as the tails are longer than a normal's. */
const BAND_SIGMAS = 1.8;

/** A point on a curve of what was done: active seconds against work. */
interface Mark {
  atS: number;
  /** Seconds since the session's begin in which this side could work at all. */
  activeS: number;
  /** Cumulative. */
  primary: number;
  /** Cumulative; 0 for uploads. */
  secondary: number;
  batches: number;
}

/** What this session has done, for the ETA only. A resumed run starts a new one: another machine's speed is no guide. */
export class EtaLog {
  readonly startS: number;
  readonly computed: Mark[] = [];
  readonly verified: Mark[] = [];

  /** `startS`: when the first batch was handed out, monotonic seconds. */
  constructor(startS: number) {
    this.startS = startS;
  }

  /**
   * An engine finished a batch at `atS`. `blockedS`: seconds a slot of the compute stage has been blocked since
   * `startS`, on average (blocked seconds / slots): time in which the engines' speed did not count.
   */
  batchComputed(atS: number, work: Work, blockedS: number): void {
    append(this.computed, atS, atS - this.startS - blockedS, work.tokens, work.tokensSquared);
  }

  /** The store confirmed a pack at `atS`. `starvedS`: the same for upload slots that had nothing to send. */
  packVerified(atS: number, bytes: number, starvedS: number): void {
    append(this.verified, atS, atS - this.startS - starvedS, bytes, 0);
  }
}

/**
 * When the run will be done: the slower of computing and uploading what is left, and the last pack's way. Null
 * before five batches and a minute, and when nothing has happened for long; `reason` says which.
 */
export function estimateEta(input: EtaInput): Eta {
  const { log, nowS, nowMs, slots, drainS = 0 } = input;
  if (input.bytesToVerify <= 0) return known(0, 0, 0, nowMs, "done");
  const notYet = notYetBecause(log, nowS);
  if (notYet) return { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason: notYet };

  const { tokens, tokensSquared } = input.toCompute;
  const compute = remaining(log.computed, tokens, tokensSquared, slots, input.attentionShare ?? 0);
  const upload = remaining(log.verified, input.bytesToVerify, 0, slots, 0);
  if (!compute) return { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason: "measuring" };

  const sides = upload ? [compute, upload] : [compute];
  const slower = (quantile: (side: Remaining) => number) => Math.max(...sides.map(quantile)) + drainS;
  return known(
    slower((side) => side.p10S),
    slower((side) => side.p50S),
    slower((side) => side.p90S),
    nowMs,
    upload && upload.p50S > compute.p50S ? "upload" : "compute",
  );
}

interface Remaining {
  p10S: number;
  p50S: number;
  p90S: number;
}

function known(p10S: number, p50S: number, p90S: number, nowMs: number, reason: string): Eta {
  return {
    p10_s: p10S,
    p50_s: p50S,
    p90_s: p90S,
    finish_at: new Date(nowMs + p50S * 1_000).toISOString(),
    reason,
  };
}

function notYetBecause(log: EtaLog, nowS: number): string | null {
  const batches = log.computed.reduce((sum, mark) => sum + mark.batches, 0);
  const elapsedS = nowS - log.startS;
  const missing = [
    batches < BATCHES_MIN ? `${batches} of ${BATCHES_MIN} batches` : null,
    elapsedS < SECONDS_MIN ? `${Math.floor(elapsedS)} of ${SECONDS_MIN} s` : null,
  ].filter((text) => text !== null);
  if (missing.length > 0) return `measuring: ${missing.join(", ")}`;
  const newestS = Math.max(...[...log.computed.slice(-1), ...log.verified.slice(-1)].map((mark) => mark.atS));
  const silenceS = nowS - newestS;
  const usualS = (newestS - log.startS) / batches;
  if (silenceS > Math.max(SILENCE_S_MIN, 10 * usualS))
    return `no batch finished for ${Math.round(silenceS)} s`;
  return null;
}

function append(marks: Mark[], atS: number, activeS: number, primary: number, secondary: number): void {
  const last = marks.at(-1);
  marks.push({
    atS,
    activeS: Math.max(last?.activeS ?? 0, activeS),
    primary: (last?.primary ?? 0) + primary,
    secondary: (last?.secondary ?? 0) + secondary,
    batches: 1,
  });
  if (marks.length <= MARKS_MAX) return;
  const joined: Mark[] = [];
  for (let i = 0; i < marks.length; i += 2) {
    const [one, two] = [marks[i]!, marks[i + 1]];
    joined.push(two ? { ...two, batches: one.batches + two.batches } : one);
  }
  marks.splice(0, marks.length, ...joined);
}

/** One stretch of the curve. */
interface Bin {
  seconds: number;
  primary: number;
  secondary: number;
  weight: number;
}

/**
 * Seconds that `primary` (and `secondary`) more will take at the speed measured, and how sure that is. Null
 * without a stretch to measure on.
 */
function remaining(
  marks: readonly Mark[],
  primary: number,
  secondary: number,
  slots: number,
  prior: number,
): Remaining | null {
  const bins = binsOf(marks, slots);
  if (bins.length < 2) return null;
  const cost = fitCost(bins, prior);
  const p50S = cost.primary * primary + cost.secondary * secondary;
  if (!Number.isFinite(p50S)) return null;
  const spread = spreadOf(bins, cost, {
    primary,
    secondary,
    slots,
    batches: batchesAfterFirst(marks, slots),
  });
  return {
    p10S: p50S / (1 + BAND_SIGMAS * spread),
    p50S,
    p90S: p50S * (1 + BAND_SIGMAS * spread),
  };
}

/**
 * The first `slots` batches start and so finish together: the curve is measured from after them, or their
 * number would look like speed. With few batches, from after a third.
 */
function firstMeasured(marks: readonly Mark[], slots: number): number {
  let batches = 0;
  const total = marks.reduce((sum, mark) => sum + mark.batches, 0);
  const skipped = Math.min(Math.max(1, slots), Math.max(1, Math.floor(total / 3)));
  const index = marks.findIndex((mark) => {
    batches += mark.batches;
    return batches >= skipped;
  });
  return Math.max(0, index);
}

function batchesAfterFirst(marks: readonly Mark[], slots: number): number {
  return marks.slice(firstMeasured(marks, slots) + 1).reduce((sum, mark) => sum + mark.batches, 0);
}

function binsOf(marks: readonly Mark[], slots: number): Bin[] {
  const begin = firstMeasured(marks, slots);
  const last = marks.at(-1);
  if (!last) return [];
  const halfLifeS = Math.max(HALF_LIFE_S_MIN, HALF_LIFE_SHARE * last.activeS);
  const size = Math.max(1, Math.ceil((marks.length - 1 - begin) / BINS_MAX));
  const bins: Bin[] = [];
  for (let end = marks.length - 1; end > begin; end -= size) {
    const [from, to] = [marks[Math.max(begin, end - size)]!, marks[end]!];
    bins.push({
      seconds: to.activeS - from.activeS,
      primary: to.primary - from.primary,
      secondary: to.secondary - from.secondary,
      weight: 0.5 ** ((last.activeS - to.activeS) / halfLifeS),
    });
  }
  return bins.filter((bin) => bin.primary > 0);
}

/** Seconds a unit of each. */
interface Cost {
  primary: number;
  secondary: number;
}

/**
 * Least squares of seconds = a * primary + b * secondary, each bin weighted by 1 / primary (its noise grows with
 * its size), b drawn towards `prior` * a: in shuffled order the two go together and only their sum is known,
 * which is all that the estimate then needs. Neither is ever negative.
 */
function fitCost(bins: readonly Bin[], prior: number): Cost {
  let [ss, st, tt, sy, ty, weights] = [0, 0, 0, 0, 0, 0];
  for (const { seconds, primary, secondary, weight } of bins) {
    const w = weight / primary;
    ss += w * primary * primary;
    st += w * primary * secondary;
    tt += w * secondary * secondary;
    sy += w * primary * seconds;
    ty += w * secondary * seconds;
    weights += weight;
  }
  const flat: Cost = { primary: sy / ss, secondary: 0 };
  if (tt === 0) return flat;
  // As strong as one bin that held only `secondary`.
  const pull = tt / Math.max(1, weights);
  const [a11, a12, a22] = [ss + pull * prior * prior, st - pull * prior, tt + pull];
  const determinant = a11 * a22 - a12 * a12;
  if (!(determinant > 0)) return flat;
  const cost = {
    primary: (sy * a22 - ty * a12) / determinant,
    secondary: (ty * a11 - sy * a12) / determinant,
  };
  if (cost.secondary < 0) return flat;
  if (cost.primary < 0) return { primary: 0, secondary: ty / tt };
  return cost;
}

/** One standard deviation of the estimate, as a share of it: what is left may differ from what was seen by it. */
function spreadOf(
  bins: readonly Bin[],
  cost: Cost,
  left: { primary: number; secondary: number; slots: number; batches: number },
): number {
  const ratios = bins.map(
    (bin) => bin.seconds / (cost.primary * bin.primary + cost.secondary * bin.secondary),
  );
  const weights = bins.reduce((sum, bin) => sum + bin.weight, 0);
  const mean = ratios.reduce((sum, ratio, i) => sum + ratio * bins[i]!.weight, 0) / weights;
  const variance = ratios.reduce((sum, ratio, i) => sum + bins[i]!.weight * (ratio - mean) ** 2, 0) / weights;
  const independent = weights ** 2 / bins.reduce((sum, bin) => sum + bin.weight ** 2, 0);
  const seen = bins.reduce((sum, bin) => sum + bin.primary, 0);
  const binsLeft = Math.max(1, (left.primary / seen) * bins.length);
  const persistence = persistenceOf(ratios, mean);
  const noise = variance * persistence * (1 / independent + 1 / binsLeft);

  // Lengths unlike those seen: the fit is as good as its slope, of which half is believed.
  const lengthSeen = bins.reduce((sum, bin) => sum + bin.secondary, 0) / seen;
  const lengthLeft = left.primary > 0 ? left.secondary / left.primary : lengthSeen;
  const costSeen = cost.primary + cost.secondary * lengthSeen;
  const costLeft = cost.primary + cost.secondary * lengthLeft;
  const stretch = lengthSeen > 0 && lengthLeft > 0 ? Math.abs(Math.log2(lengthLeft / lengthSeen)) : 0;
  const unlike = 0.5 * Math.abs(costLeft / costSeen - 1) + 0.03 * stretch;

  // Batches that end together make any single look early or late by up to one round of them.
  const rounds = left.slots / Math.max(1, left.batches) / Math.sqrt(12);
  return Math.hypot(SPREAD_MIN, Math.sqrt(noise), unlike, rounds);
}

/** How much more a mean varies because slow stretches come in a row: (1 + r) / (1 - r), r the lag-1 correlation. */
function persistenceOf(ratios: readonly number[], mean: number): number {
  let [along, all] = [0, 0];
  for (const [i, ratio] of ratios.entries()) {
    all += (ratio - mean) ** 2;
    if (i > 0) along += (ratio - mean) * (ratios[i - 1]! - mean);
  }
  const correlation = all > 0 ? Math.min(0.8, Math.max(0, along / all)) : 0;
  return (1 + correlation) / (1 - correlation);
}
