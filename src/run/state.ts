import type { RunState, StatusDocument } from "./status.ts";

/** What the run's state is judged from; seconds are by one monotonic clock. */
export interface StateFacts {
  phase: "planning" | "loading" | "gate" | "extracting" | "draining";
  /** What is being done just now, in words, and how far it is. */
  doing: string;
  /** Whether this session has given anything yet: a batch out of an engine, or one in the store. */
  isWarm: boolean;
  /** Where it has ended. */
  ending: "done" | "stopped" | "failed" | null;
  endingReason: string | null;
  stopping: boolean;
  skipped: number;
  blocked: { reason: string; action: string } | null;
  /** Since the last commit of this session; null before the first. */
  sinceCommitS: number | null;
  /** Seconds between two commits of this session, on average; null before the first. */
  expectedCommitS: number | null;
  /** Retried requests / requests in the last minutes; null where they are too few to tell. */
  retryShare: number | null;
  enginesDown: number;
  engines: number;
  spoolShare: number;
  /** Why the store's check is weaker than the best, or null. */
  weakerVerify: string | null;
}

export interface Judged {
  state: RunState;
  reason: string | null;
  action: string | null;
}

const STALLED_FLOOR_S = 120;

/** The run's state in one word, why, and what to do. Order matters: what needs a person most comes first. */
export function judgeState(facts: StateFacts): Judged {
  if (facts.ending === "failed")
    return judged("failed", facts.endingReason, "see the log, then run the same command again");
  if (facts.ending === "stopped")
    return judged("stopped", facts.endingReason, "run the same command to go on");
  if (facts.ending === "done")
    return facts.skipped > 0 ? judged("done_with_skips", `${facts.skipped} rows skipped`) : judged("done");
  if (facts.stopping) return judged("stopping", "finishing what is in the engines and in ready/");
  if (facts.blocked) return judged("blocked", facts.blocked.reason, facts.blocked.action);
  const isUnderWay = facts.phase === "draining" || (facts.phase === "extracting" && facts.isWarm);
  if (!isUnderWay) return judged("starting", facts.doing);
  const limitS = Math.max(STALLED_FLOOR_S, 3 * (facts.expectedCommitS ?? 0));
  if (facts.expectedCommitS !== null && facts.sinceCommitS !== null && facts.sinceCommitS > limitS) {
    return judged(
      "stalled",
      `no commit for ${Math.round(facts.sinceCommitS)} s`,
      "forebay logs shows what the engines and the store say",
    );
  }
  const weaknesses = [
    facts.enginesDown > 0 ? `${facts.enginesDown} of ${facts.engines} engines down` : null,
    facts.retryShare !== null && facts.retryShare > 0.01
      ? `${(100 * facts.retryShare).toFixed(1)} % of store requests retried`
      : null,
    facts.spoolShare > 0.9 ? "spool over 90 % full" : null,
    facts.weakerVerify,
  ].filter((weakness) => weakness !== null);
  return weaknesses.length > 0 ? judged("degraded", weaknesses.join("; ")) : judged("running");
}

/** What a person should not overlook. */
export function alertsOf(
  judged: Judged,
  run: { volatile: boolean; engineChange: string | null },
): StatusDocument["alerts"] {
  const { state, reason, action } = judged;
  const alerts: StatusDocument["alerts"] = [];
  if (state === "blocked" || state === "failed")
    alerts.push({ level: "error", text: reason ?? state, action });
  if (state === "stalled" || state === "degraded")
    alerts.push({ level: "warn", text: reason ?? state, action });
  if (run.engineChange !== null) {
    alerts.push({
      level: "warn",
      text: `the states are not all made alike: ${run.engineChange}`,
      action: null,
    });
  }
  if (run.volatile) {
    const text = "the spool is on tmpfs: what is not uploaded goes with the power";
    alerts.push({ level: "warn", text, action: null });
  }
  return alerts;
}

function judged(state: RunState, reason: string | null = null, action: string | null = null): Judged {
  return { state, reason, action };
}
