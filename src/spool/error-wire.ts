import { type ExitCode, errnoOf, type Remedy, RunError } from "../base/errors.ts";
import { StoreError, type StoreErrorKind } from "../store/store.ts";

/** An error as it crosses a thread: structured clone keeps only `message` of an Error's own fields. */
export interface ErrorWire {
  op: string;
  subject: string;
  message: string;
  safe?: string;
  hint?: string;
  remedy: Remedy;
  exit: ExitCode;
  errno?: string;
  store?: { kind: StoreErrorKind; status?: number; code?: string; requestId?: string; retryAfterMs?: number };
}

/** `context` names the work for errors that are not ours (a system error has only its path). */
export function toWire(error: unknown, context: { op: string; subject: string; exit: ExitCode }): ErrorWire {
  const errno = errnoOf(error) ?? (error instanceof Error ? errnoOf(error.cause) : undefined);
  if (!(error instanceof RunError)) {
    const message = error instanceof Error ? error.message : String(error);
    return { ...context, message, remedy: "stop", errno };
  }
  const { op, subject, message, safe, hint, remedy, exit } = error;
  const wire: ErrorWire = { op, subject, message, safe, hint, remedy, exit, errno };
  if (error instanceof StoreError) {
    const { kind, status, code, requestId, retryAfterMs } = error;
    wire.store = { kind, status, code, requestId, retryAfterMs };
  }
  return wire;
}

/** The error again; `code` carries the errno, so that errnoOf works on this side too. */
export function fromWire(wire: ErrorWire): RunError {
  const error = wire.store ? new StoreError({ ...wire, ...wire.store }) : new RunError(wire);
  if (wire.errno && !wire.store) Object.assign(error, { code: wire.errno });
  return error;
}
