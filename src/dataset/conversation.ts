/** A message as templates see it: role, content, and whatever else the dataset has (tool_calls, reasoning_content). */
export type Message = Record<string, unknown> & { role: string };

/** A row that cannot be tokenised rightly, and why: it is counted and left out, never guessed at. */
export class RefusedRow extends Error {}

/** ShareGPT's speakers as the roles that templates know. */
const ROLES: Record<string, string> = {
  system: "system",
  human: "user",
  user: "user",
  gpt: "assistant",
  assistant: "assistant",
  chatgpt: "assistant",
  tool: "tool",
  observation: "tool",
  function_response: "tool",
};

/**
 * The messages of a row: `messages` or `conversations` (or `key`), each {role, content} or ShareGPT's {from, value}.
 * As transformers does, keys whose value is null are left out, and reasoning goes by all the names templates read.
 * Throws RefusedRow.
 */
export function messagesOf(row: unknown, key?: string): Message[] {
  if (typeof row !== "object" || row === null || Array.isArray(row))
    throw new RefusedRow("the row is no object");
  const columns = row as Record<string, unknown>;
  const list = key === undefined ? (columns.messages ?? columns.conversations) : columns[key];
  if (!Array.isArray(list)) {
    const wanted = key ?? "messages or conversations";
    throw new RefusedRow(
      `expected a list ${wanted}, found the columns ${Object.keys(columns).join(", ") || "none"}`,
    );
  }
  if (list.length === 0) throw new RefusedRow("the conversation is empty");
  if (Array.isArray(columns.tools) && columns.tools.length > 0) {
    throw new RefusedRow("the row has tools, which are not handed to the template");
  }
  return list.map(messageOf);
}

function messageOf(item: unknown, index: number): Message {
  const message = namedMessageOf(item, index);
  const { content } = message;
  const isText =
    content === undefined ||
    typeof content === "string" ||
    (Array.isArray(content) && content.every(isTextPart));
  if (!isText) throw new RefusedRow(`the content of message ${index} is no text`);
  return message;
}

function isTextPart(part: unknown): boolean {
  return typeof part === "object" && part !== null && "text" in part && typeof part.text === "string";
}

function namedMessageOf(item: unknown, index: number): Message {
  if (typeof item !== "object" || item === null || Array.isArray(item)) {
    throw new RefusedRow(`message ${index} is no object`);
  }
  const message = Object.fromEntries(Object.entries(item).filter(([, value]) => value !== null));
  if (message.role === undefined && typeof message.from === "string") {
    const role = ROLES[message.from];
    if (role === undefined)
      throw new RefusedRow(`message ${index} is from "${message.from}", which is no known role`);
    const { from, value, ...rest } = message;
    return withReasoning({ ...rest, role, content: value });
  }
  if (typeof message.role !== "string") throw new RefusedRow(`message ${index} has no role`);
  return withReasoning({ ...message, role: message.role });
}

/** Source: transformers 5, _alias_reasoning_fields. */
function withReasoning(message: Message): Message {
  const reasoning = message.reasoning_content ?? message.thinking ?? message.reasoning;
  if (reasoning === undefined) return message;
  return { thinking: reasoning, ...message, reasoning_content: reasoning };
}
