import { plainText } from "../base/log.ts";
import { Fault } from "./engine-error.ts";
import { Answer } from "./protocol.ts";

/** One line of a child's. Throws a `Fault` where it is no message of the protocol. */
export function parseAnswer(line: string): Answer {
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch {
    throw new Fault("not-json", `expected a line of JSON as an answer, found "${plainText(line, 120)}"`);
  }
  const parsed = Answer.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const where = `${issue?.path.join(".") || "type"}: ${issue?.message}`;
  const found = `found "${plainText(line, 120)}" (${where})`;
  throw new Fault("not-a-message", `expected a message of the engine protocol, ${found}`);
}
