/** What the caller should do about a failure: try the same again, leave this item out, or end the run. */
export type Remedy = "retry" | "skip" | "stop";

/** Process exit codes; scripts rely on them (`docs/operating.md` lists what to do about each). */
export const EXIT = {
  done: 0,
  bug: 1,
  usage: 2,
  doneWithSkips: 3,
  identity: 4,
  locked: 5,
  store: 6,
  engine: 7,
  disk: 8,
  integrity: 9,
  retryLater: 75,
  configuration: 78,
  interrupted: 130,
  terminated: 143,
} as const;

export type ExitCode = (typeof EXIT)[keyof typeof EXIT];

export interface RunErrorFields {
  /** What was being done, two or three words: "open dataset", "put pack". */
  op: string;
  /** What it was done to: a path, key, row or batch. */
  subject: string;
  /** What was expected and what was found, one sentence. */
  message: string;
  /** What is not harmed. Default: nothing said. */
  safe?: string;
  /** The next thing to do, as a command where there is one. */
  hint?: string;
  /** Default "stop". */
  remedy?: Remedy;
  /** The exit code if this ends the process. Default `EXIT.bug`. */
  exit?: ExitCode;
  cause?: unknown;
}

/** Every failure a person may have to act on: what, where, what is safe, what to do next. */
export class RunError extends Error {
  readonly op: string;
  readonly subject: string;
  /** Set later by whoever knows more (`stillSafe`). */
  safe: string | undefined;
  readonly hint: string | undefined;
  readonly remedy: Remedy;
  readonly exit: ExitCode;

  constructor(fields: RunErrorFields) {
    super(fields.message, fields.cause === undefined ? undefined : { cause: fields.cause });
    this.name = "RunError";
    this.op = fields.op;
    this.subject = fields.subject;
    this.safe = fields.safe;
    this.hint = fields.hint;
    this.remedy = fields.remedy ?? "stop";
    this.exit = fields.exit ?? EXIT.bug;
  }
}

/** The same error, saying what is not harmed where it said nothing of that: its thrower may be too deep to know. */
export function stillSafe(error: unknown, safe: string): unknown {
  if (error instanceof RunError) error.safe ??= safe;
  return error;
}

/** The `code` of a Node system error ("ENOSPC"), or undefined. */
export function errnoOf(error: unknown): string | undefined {
  if (error instanceof Error && "code" in error && typeof error.code === "string") return error.code;
  return undefined;
}

/** No room, no inodes (also ENOSPC) or no quota: it passes by itself once something is deleted. */
export function isOutOfSpace(error: unknown): boolean {
  return isNoSpaceErrno(errnoOf(error));
}

/** The same of an errno that came without its error. */
export function isNoSpaceErrno(errno: string | null | undefined): boolean {
  return errno === "ENOSPC" || errno === "EDQUOT";
}

/** One line that says what a thrown value was, following `cause` to the bottom. */
export function describeError(error: unknown): string {
  const parts: string[] = [];
  for (let e = error; e !== undefined && e !== null && parts.length < 5; ) {
    parts.push(e instanceof Error ? e.message : String(e));
    e = e instanceof Error ? e.cause : undefined;
  }
  return parts.join(": ");
}
