import { isNoSpaceErrno } from "../base/errors.ts";
import type { FailureKind } from "./engine-error.ts";

/**
 * What to do about rows that have no states yet: data in, decision out. The fleet (fleet.ts) carries it out.
 *
 * Words. A *life* is one child process, numbered in the order of their starts over all engines. A row is *blamed*
 * by a trial that failed it by name, or that failed when it was all the engine had. Everything else that failed is
 * *company*: one of its rows, or a row of another batch, is the cause.
 *
 * The rule. Failed rows go to another living engine first (a reload costs minutes), then to fresh ones: started
 * after the batch first failed. Rows that failed in company go together once more, alone in the engine (in halves
 * where memory ran out), then one by one. A row is skipped only when two fresh engines failed it, and in the
 * second one a row known to be good passed just before. No verdict of an engine that was stopped as sick counts.
 */

export interface TrialFailure {
  row: number;
  kind: FailureKind;
  errno: string | null;
  reason: string;
  /** By the engine, or by the check of what it answered. */
  named: boolean;
}

/** One request and what came of it. */
export interface Trial {
  engine: string;
  life: number;
  /** The highest life started by the end of this trial: higher ones are fresh for what failed in it. */
  livesStarted: number;
  rows: readonly number[];
  /** Nothing else was outstanding in the engine. */
  alone: boolean;
  /** A row known to be good passed in this life just before. */
  proven: boolean;
  /** Rows with accepted states. */
  passed: readonly number[];
  /** The other rows; all of them where the child died. */
  failures: readonly TrialFailure[];
}

export interface RetryFacts {
  /** All rows of the batch, in plan order, with their tokens. */
  rows: readonly { row: number; tokens: number }[];
  /** Rows that have accepted states in the present file. */
  good: ReadonlySet<number>;
  skipped: ReadonlySet<number>;
  /** Of this batch, oldest first. */
  trials: readonly Trial[];
  /** Engines that were stopped because they failed row after row. */
  discredited: ReadonlySet<string>;
  /** Skips that the run may still make. */
  skipsLeft: number;
  /** Whether there is a row to prove a fresh engine with. */
  hasKnownGood: boolean;
}

export type Where =
  | { kind: "any" }
  /** On a living engine that is none of these; else a fresh one. */
  | { kind: "other"; not: readonly string[] }
  /** In a life above `afterLife` that is none of `notLives`. */
  | { kind: "fresh"; afterLife: number; notLives: readonly number[] };

export type RetryStep =
  | { kind: "finish" }
  /** The groups one after another, each alone in the engine; with `probe`, a known-good row before each of `probed`. */
  | { kind: "try"; where: Where; groups: number[][]; probed: ReadonlySet<number> }
  /** Nothing has passed yet that could prove an engine: let other batches go first. */
  | { kind: "wait-for-good"; otherwise: string }
  | { kind: "skip"; rows: { row: number; reason: string }[] }
  /** The disk is full: nobody's fault. */
  | { kind: "no-space"; reason: string }
  | { kind: "stop"; cause: "too-many-skips" | "disk" | "no-progress"; reason: string };

const DISK_FAILURES_MAX = 3;
/** After that many failures in company nothing is sent together any more. */
const COMPANY_MAX = 4;

export function nextStep(facts: RetryFacts): RetryStep {
  const { rows, good, skipped, skipsLeft } = facts;
  const todo = rows.filter(({ row }) => !good.has(row) && !skipped.has(row));
  if (todo.length === 0) return { kind: "finish" };

  const full = facts.trials.at(-1)?.failures.find((f) => blameOf(f) === "full-disk");
  if (full) return { kind: "no-space", reason: full.reason };

  const trials = facts.trials.filter(({ engine }) => !facts.discredited.has(engine));
  const disk = trials.filter(({ failures }) => failures.some((f) => blameOf(f) === "disk"));
  if (disk.length >= DISK_FAILURES_MAX) {
    const { reason } = disk.at(-1)!.failures.find((f) => blameOf(f) === "disk")!;
    return { kind: "stop", cause: "disk", reason };
  }

  const failed = trials.filter((trial) => trial.failures.some(countsAgainstRows));
  const hopeless = todo.flatMap(({ row }) => {
    const reason = skipReason(row, failed);
    return reason === null ? [] : [{ row, reason }];
  });
  if (hopeless.length > skipsLeft) {
    const one = hopeless[0]!;
    const reason = `row ${one.row} would be one skip more than --max-skips allows (${one.reason})`;
    return { kind: "stop", cause: "too-many-skips", reason };
  }
  if (hopeless.length > 0) return { kind: "skip", rows: hopeless };

  // The rule ends by itself (retry.test.ts); this is for the day when somebody changes it.
  if (facts.trials.length > 50 + 20 * rows.length) {
    return { kind: "stop", cause: "no-progress", reason: `${facts.trials.length} trials of one batch` };
  }
  return nextTry(todo, trials, failed, facts.hasKnownGood);
}

function nextTry(
  todo: readonly { row: number; tokens: number }[],
  trials: readonly Trial[],
  failed: readonly Trial[],
  hasKnownGood: boolean,
): RetryStep {
  const blamed = new Set(failed.flatMap(blamedRows));
  const company = failed.filter((trial) => blamedRows(trial).length === 0);
  const smaller = failed.some(({ failures }) => failures.some((f) => blameOf(f) === "memory"));
  const innocent = groupInnocent(
    todo.filter(({ row }) => !blamed.has(row)),
    company,
    trials,
    smaller,
  );
  const suspects = todo.filter(({ row }) => blamed.has(row)).map(({ row }) => row);
  const suspectGroups =
    company.length === 0 && suspects.length > 0 ? [suspects] : suspects.map((row) => [row]);

  const where = whereNext(failed);
  const probed = new Set(where.kind === "fresh" ? suspects : []);
  if (probed.size > 0 && !hasKnownGood) {
    // The rows of this batch that are not blamed may pass, and prove the engine as well.
    if (innocent.length > 0) return { kind: "try", where, groups: innocent, probed: new Set() };
    const reason = failed.at(-1)!.failures[0]!.reason;
    return { kind: "wait-for-good", otherwise: `no row has passed yet; the last failure: ${reason}` };
  }
  return { kind: "try", where, groups: [...innocent, ...suspectGroups], probed };
}

function groupInnocent(
  rows: readonly { row: number; tokens: number }[],
  company: readonly Trial[],
  trials: readonly Trial[],
  smaller: boolean,
): number[][] {
  const all = rows.map(({ row }) => row);
  if (all.length === 0) return [];
  if (company.length === 0) return [all];
  if (company.length === 1) return smaller ? halves(rows) : [all];
  if (company.length >= COMPANY_MAX) return all.map((row) => [row]);
  const passedBefore = new Set(trials.flatMap(({ passed }) => passed));
  const cleared = all.filter((row) => passedBefore.has(row));
  const others = all.filter((row) => !passedBefore.has(row)).map((row) => [row]);
  return cleared.length > 0 ? [cleared, ...others] : others;
}

function whereNext(failed: readonly Trial[]): Where {
  if (failed.length === 0) return { kind: "any" };
  if (failed.length === 1) return { kind: "other", not: [failed[0]!.engine] };
  return { kind: "fresh", afterLife: failed[0]!.livesStarted, notLives: failed.map(({ life }) => life) };
}

/** Why `row` is given up, or null as long as it is not. */
function skipReason(row: number, failed: readonly Trial[]): string | null {
  const first = failed.find(({ failures }) => failures.some((failure) => failure.row === row));
  if (!first) return null;
  const fresh = failed.filter((trial) => trial.life > first.livesStarted && blamedRows(trial).includes(row));
  const second = fresh.find(
    (trial, i) => trial.proven && fresh.slice(0, i).some(({ life }) => life !== trial.life),
  );
  if (!second) return null;
  const failure = second.failures.find((f) => f.row === row)!;
  return `${failure.kind}: ${failure.reason}`;
}

/** Rows that this trial alone holds responsible. Memory runs out for all that is in the engine together. */
export function blamedRows(trial: Trial): number[] {
  const failures = trial.failures.filter(countsAgainstRows);
  if (trial.alone && trial.rows.length === 1) return failures.map(({ row }) => row);
  return failures.filter((f) => f.named && blameOf(f) === "row").map(({ row }) => row);
}

/** Whether all that was in the engine together was too much for its memory: a living child names a row that is too large alone. */
export function wasTooMuch({ rows, alone, failures }: Trial): boolean {
  return (rows.length > 1 || !alone) && failures.some((f) => blameOf(f) === "memory" && !f.named);
}

type Blame = "row" | "memory" | "disk" | "full-disk" | "nobody";

/** What a failure speaks against. `io` without an errno is of a file that an engine reads: its server's, not the spool's. */
function blameOf({ kind, errno }: TrialFailure): Blame {
  if (kind === "stopped") return "nobody";
  if (kind === "oom") return "memory";
  if (kind !== "io" || errno === null) return "row";
  return isNoSpaceErrno(errno) ? "full-disk" : "disk";
}

/** A disk's trouble and our own stopping of an engine say nothing about rows. */
function countsAgainstRows(failure: TrialFailure): boolean {
  return ["row", "memory"].includes(blameOf(failure));
}

/** Two groups of about half the tokens each; one row makes one group. */
function halves(rows: readonly { row: number; tokens: number }[]): number[][] {
  const total = rows.reduce((sum, { tokens }) => sum + tokens, 0);
  const first: number[] = [];
  let tokens = 0;
  for (const sample of rows.slice(0, -1)) {
    if (first.length > 0 && tokens + sample.tokens > total / 2) break;
    first.push(sample.row);
    tokens += sample.tokens;
  }
  const second = rows.slice(first.length).map(({ row }) => row);
  return first.length > 0 ? [first, second] : [second];
}

/**
 * Rows that an engine alone was to blame for since it last did anything right, over all its lives, after one trial
 * more. When there are many in a row, the engine is ill, not the rows. A child that failed a whole request without
 * dying answers for all of it, unless its memory was too small for them together.
 */
export function nextCulprits(
  culprits: ReadonlySet<number>,
  trial: Trial,
  died: boolean,
): ReadonlySet<number> {
  if (trial.passed.length > 0) return new Set();
  const tooMuchTogether = (f: TrialFailure) => blameOf(f) === "memory" && trial.rows.length > 1;
  const rows = died
    ? blamedRows(trial)
    : trial.failures.filter((f) => countsAgainstRows(f) && !tooMuchTogether(f)).map(({ row }) => row);
  return new Set([...culprits, ...rows]);
}
