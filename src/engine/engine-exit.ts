import { EXIT } from "../base/errors.ts";
import type { ChildEnd } from "./child.ts";
import { EngineError, type FailureKind, type ProtocolFault, type Retry } from "./engine-error.ts";
import type { Hello } from "./protocol.ts";

/** The first thing that went wrong with a child, or was asked of it: what its end is reported as. */
export interface Ending {
  kind: FailureKind;
  fault: ProtocolFault | null;
  /** One sentence. */
  message: string;
  rows: readonly number[];
  retry: Retry;
}

export interface EngineExit {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** One sentence. */
  reason: string;
  kind: FailureKind;
  fault: ProtocolFault | null;
  /** Known to be at fault; empty: unknown. */
  rows: readonly number[];
  retry: Retry;
  killedByUs: boolean;
  /** It is still there, and may hold its device for ever. */
  unkillable: boolean;
  /** It took its leave as the protocol has it. */
  saidBye: boolean;
  stderrTail: string[];
}

export interface ExitFacts {
  /** The program that was to be started. */
  file: string;
  /** Null: it ended by itself, and nothing was wrong before. */
  ending: Ending | null;
  /** Null: it did not greet. */
  hello: Hello | null;
  saidBye: boolean;
  stderrTail: string[];
}

/** What a child's end means. */
export function describeExit(end: ChildEnd, facts: ExitFacts): EngineExit {
  const { code, signal, killedByUs, unkillable } = end;
  const { saidBye, stderrTail } = facts;
  const { message: reason, ...ending } = endingOf(end, facts);
  return { code, signal, reason, ...ending, killedByUs, unkillable, saidBye, stderrTail };
}

function endingOf(end: ChildEnd, { file, ending, hello, saidBye }: ExitFacts): Ending {
  const { code, signal, spawnError } = end;
  const alone = { rows: [], fault: null, retry: "restart" } as const;
  if (spawnError) {
    return { ...alone, kind: "start", message: `${file} could not be started: ${spawnError.message}` };
  }
  if (end.unkillable) {
    const message = `${ending ? `${ending.message}, and ` : ""}SIGKILL did not end it: it waits in a driver or on a disk`;
    return { ...alone, kind: "hang", ...ending, message };
  }
  if (ending) return ending;
  const ended = signal ? `it was ended by ${signal}` : `it exited with code ${code}`;
  if (signal === "SIGKILL" && isOnCpu(hello)) {
    // The kernel's out-of-memory killer leaves no other trace that a parent can see.
    const message = `${ended}, as the kernel does when memory runs out`;
    return { ...alone, kind: "oom", retry: "smaller", message };
  }
  if (!hello)
    return { ...alone, kind: "start", fault: "hello-missing", message: `${ended} before its hello` };
  const message = saidBye ? `${ended} with a bye that nobody asked for` : ended;
  return { ...alone, kind: "crash", message };
}

function isOnCpu(hello: Hello | null): boolean {
  return hello === null || hello.devices.every((device) => device.uuid === null);
}

/** What a request rejects with, or the start (`op`), once the child has exited. `asked`: the request's rows. */
export function exitError(
  exit: EngineExit,
  request: { op: string; label: string; asked: readonly number[]; stderrFile: string | null },
): EngineError {
  const { op, label, asked, stderrFile } = request;
  const own = new Set(asked);
  return new EngineError({
    op,
    subject: label,
    message: `engine ${label}: ${exit.reason}`,
    stderr: lastLines(exit.stderrTail),
    ...(stderrFile === null ? {} : { hint: `its whole stderr is in ${stderrFile}` }),
    kind: exit.kind,
    fault: exit.fault,
    rows: exit.rows.filter((row) => own.has(row)),
    retry: exit.retry,
    unkillable: exit.unkillable,
    // A program that is not there is not there the next time either.
    exit: exit.kind === "start" && exit.fault === null ? EXIT.configuration : EXIT.engine,
    remedy: "retry",
  });
}

/** The end of a traceback, and within what a line of JSON about an error may hold. */
const LAST_LINES_MAX = 10;
const LAST_BYTES_MAX = 1_500;

/** What of a child's stderr goes into a message: as many of its last lines as are let. */
export function lastLines(stderrTail: readonly string[]): string[] {
  const lines: string[] = [];
  let bytes = 0;
  const said = stderrTail.filter((line) => line.trim() !== "");
  for (const line of said.slice(-LAST_LINES_MAX).reverse()) {
    const cut = lines.length === 0 ? firstBytes(line, LAST_BYTES_MAX) : line;
    bytes += Buffer.byteLength(cut) + 1;
    if (bytes > LAST_BYTES_MAX + 1) break;
    lines.unshift(cut);
  }
  return lines;
}

/** Whole characters only. */
function firstBytes(text: string, bytesMax: number): string {
  if (Buffer.byteLength(text) <= bytesMax) return text;
  return Buffer.from(text)
    .subarray(0, bytesMax)
    .toString("utf8")
    .replace(/\ufffd+$/, "");
}
