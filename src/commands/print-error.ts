import { describeError, EXIT, RunError } from "../base/errors.ts";
import { plainText } from "../base/log.ts";
import { SignalReceived } from "./io.ts";

/** The exit code a thrown value stands for. */
export function exitCodeFor(error: unknown): number {
  if (error instanceof SignalReceived) return error.exitCode;
  return error instanceof RunError ? error.exit : EXIT.bug;
}

/**
 * What a person sees of a failure: what, where, what is safe, what to do next. Anything that is no RunError is a
 * bug of ours and shows its stack.
 */
export function errorText(error: unknown, json: boolean): string {
  if (error instanceof SignalReceived) return json ? "" : `forebay: ${error.message}\n`;
  if (json) return `${JSON.stringify(errorJson(error))}\n`;
  if (!(error instanceof RunError)) {
    const stack = error instanceof Error ? (error.stack ?? error.message) : String(error);
    const shown = plainText(stack, 8_000);
    return `forebay: a bug in Forebay, not in what you did\n${shown}\n  next: please report it with the lines above\n`;
  }
  const cause = error.cause === undefined ? null : describeError(error.cause);
  const lines = [
    `forebay: cannot ${error.op}: ${error.message}`,
    `  where: ${error.subject}`,
    ...(cause !== null && !error.message.includes(cause) ? [`  cause: ${cause}`] : []),
    ...(error.safe ? [`  safe:  ${error.safe}`] : []),
    ...(error.hint ? [`  next:  ${error.hint}`] : []),
  ];
  return `${lines.map((line) => plainText(line, 4_000)).join("\n")}\n`;
}

function errorJson(error: unknown) {
  if (!(error instanceof RunError)) {
    return { event: "error", op: "bug", message: plainText(describeError(error)), exit: EXIT.bug };
  }
  const { op, subject, message, safe = null, hint = null, exit } = error;
  return { event: "error", op, subject: plainText(subject), message: plainText(message), safe, hint, exit };
}
