import { describeError, errnoOf, RunError } from "../../base/errors.ts";
import type { ErrorAnswer } from "../protocol.ts";

/** What an `error` answer says about a failure. */
export type Failure = Pick<ErrorAnswer, "kind" | "errno" | "message" | "retry">;

/** ONNX Runtime has no error code for it: what its allocators, C++ and V8 say when there is no more. */
const OUT_OF_MEMORY =
  /bad_?alloc|failed to allocate|out of memory|allocation failed|available memory|posix_memalign/i;

/** Sorts a thrown value into the protocol's kinds. What nobody expected is a crash, and its child is not trusted. */
export function failureOf(error: unknown): Failure {
  const message = describeError(error);
  if (error instanceof RunError) {
    const hint = error.hint ? ` (${error.hint})` : "";
    return {
      kind: "bad-request",
      errno: null,
      message: `${error.subject}: ${message}${hint}`,
      retry: "no",
    };
  }
  const errno = errnoOf(error);
  if (errno?.match(/^E[A-Z0-9]+$/)) return { kind: "io", errno, message, retry: "no" };
  if (OUT_OF_MEMORY.test(message)) return { kind: "oom", errno: null, message, retry: "smaller" };
  return { kind: "crash", errno: null, message, retry: "restart" };
}

/** A request that cannot be done as it stands. */
export function badRequest(message: string): Failure {
  return { kind: "bad-request", errno: null, message, retry: "no" };
}
