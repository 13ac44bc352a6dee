import type { RunState } from "../../src/run/status.ts";

/** How a state looks: calm, at work, needing a look, needing a person, or over. */
export type Tone = "good" | "busy" | "warn" | "bad" | "rest";

const TONES: Record<RunState, Tone> = {
  starting: "busy",
  running: "good",
  stalled: "warn",
  degraded: "warn",
  blocked: "bad",
  stopping: "busy",
  stopped: "rest",
  preempted: "warn",
  done: "good",
  done_with_skips: "good",
  failed: "bad",
  lost: "bad",
};

export function toneOf(state: RunState): Tone {
  return TONES[state];
}

/** What a state means, for when the run itself gives no reason. */
export const MEANING: Record<RunState, string> = {
  starting: "Planning, loading the model, warming up.",
  running: "All is well.",
  stalled: "Nothing has been committed for a while.",
  degraded: "It works, but not as it should.",
  blocked: "It cannot go on by itself.",
  stopping: "Finishing what is in the engines and the spool.",
  stopped: "Stopped on request; it can be resumed.",
  preempted: "The machine was taken away; it can be resumed.",
  done: "Every sample is verified in the store.",
  done_with_skips: "Every sample is verified in the store or accounted for as skipped.",
  failed: "It ended with an error.",
  lost: "The supervisor has gone silent.",
};

const OVER: readonly RunState[] = ["stopped", "preempted", "done", "done_with_skips", "failed", "lost"];

export function isOver(state: RunState): boolean {
  return OVER.includes(state);
}
