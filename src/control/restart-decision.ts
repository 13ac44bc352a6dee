import { fullJitterMs } from "../base/backoff.ts";
import { EXIT } from "../base/errors.ts";

/** How a supervisor ended: one of the two is set. */
export interface SupervisorExit {
  code: number | null;
  signal: string | null;
}

export interface RestartHistory {
  /** Whether this or an earlier supervisor of this keeper committed a batch: the settings, then, do work. */
  everCommitted: boolean;
  /** Supervisors in a row, this one included, that ended without committing anything. */
  fruitless: number;
}

export type RestartDecision =
  | { kind: "end"; reason: string }
  | { kind: "restart"; afterMs: number; reason: string };

/** A supervisor that dies so often without a single commit will not get better by itself. */
export const FRUITLESS_MAX = 6;
const BACKOFF = { baseMs: 1_000, capMs: 60_000 };

/**
 * Whether the keeper starts a supervisor again. Not after an end somebody asked for, nor where the same settings
 * would fail the same way; yes after crashes, and after store trouble once the store has worked.
 */
export function restartDecision(
  exit: SupervisorExit,
  history: RestartHistory,
  random: () => number,
): RestartDecision {
  const end = endReason(exit, history);
  if (end) return { kind: "end", reason: end };
  if (history.fruitless >= FRUITLESS_MAX) {
    return { kind: "end", reason: `it died ${history.fruitless} times in a row without committing anything` };
  }
  const afterMs = Math.round(fullJitterMs(Math.max(0, history.fruitless - 1), { ...BACKOFF, random }));
  return { kind: "restart", afterMs, reason: exitInWords(exit) };
}

/** The exit code that stands for it in a shell: 128 + n for signals. */
export function exitCodeOf(exit: SupervisorExit): number {
  if (exit.code !== null) return exit.code;
  return 128 + (SIGNAL_NUMBERS[exit.signal ?? ""] ?? 0);
}

export function exitInWords(exit: SupervisorExit): string {
  return exit.signal ? `killed by ${exit.signal}` : `exit ${exit.code}`;
}

const SIGNAL_NUMBERS: Record<string, number> = {
  SIGHUP: 1,
  SIGINT: 2,
  SIGQUIT: 3,
  SIGILL: 4,
  SIGABRT: 6,
  SIGBUS: 7,
  SIGFPE: 8,
  SIGKILL: 9,
  SIGSEGV: 11,
  SIGPIPE: 13,
  SIGTERM: 15,
};

function endReason(exit: SupervisorExit, history: RestartHistory): string | null {
  switch (exitCodeOf(exit)) {
    case EXIT.done:
    case EXIT.doneWithSkips:
      return "the run is done";
    case EXIT.interrupted:
    case EXIT.terminated:
    case 129:
      return "it was asked to stop";
    case EXIT.usage:
    case EXIT.configuration:
      return "the settings need a person";
    case EXIT.identity:
      return "another run stands at this address; a person must choose";
    case EXIT.locked:
      return "another Forebay works on this part";
    case EXIT.engine:
      return "the engine fails for good; a person must look";
    case EXIT.disk:
      return "the disk needs a person";
    case EXIT.retryLater:
      return "it gave up waiting, as --max-blocked says";
    case EXIT.integrity:
      return "stored bytes are not what they should be; a person must look";
    case EXIT.store:
      return history.everCommitted ? null : "the store refuses us, and has never worked";
    default:
      return null;
  }
}
