import { describeError, errnoOf, RunError } from "../../base/errors.ts";
import type { ErrorAnswer } from "../protocol.ts";

/** What an `error` answer says about a failure. */
export type Failure = Pick<ErrorAnswer, "kind" | "errno" | "message" | "retry">;

/** A failure whose place in the protocol is known where it is found. */
export class VllmError extends Error {
  readonly failure: Failure;

  constructor(failure: Failure) {
    super(failure.message);
    this.name = "VllmError";
    this.failure = failure;
  }
}

/** It would fail the same way again: a wrong server, wrong settings of it, or a prompt that it refuses. */
export function refused(message: string): VllmError {
  return new VllmError({ kind: "bad-request", errno: null, message, retry: "no" });
}

/** The server is gone or its engine is dead. Says nothing about any row: many were open. */
export function serverGone(message: string): VllmError {
  return new VllmError({ kind: "crash", errno: null, message, retry: "restart" });
}

/** The connector's file is missing, cut or locked, or its folder is too small. */
export function fileTrouble(message: string): VllmError {
  return new VllmError({ kind: "io", errno: null, message, retry: "no" });
}

/** Sorts any thrown value into the protocol's kinds. What nobody expected is a crash. */
export function failureOf(error: unknown): Failure {
  if (error instanceof VllmError) return error.failure;
  const message = describeError(error);
  if (error instanceof RunError) {
    const hint = error.hint ? ` (${error.hint})` : "";
    return refused(`${error.subject}: ${message}${hint}`).failure;
  }
  const errno = errnoOf(error);
  if (errno?.match(/^E[A-Z0-9]+$/)) return { kind: "io", errno, message, retry: "no" };
  return serverGone(message).failure;
}
