import { randomBytes } from "node:crypto";
import { type ChatTemplate, removeMarks, type Span } from "./chat-template.ts";
import { type Message, RefusedRow } from "./conversation.ts";
import { strip, stripEnd, stripStart } from "./python-text.ts";

/** A conversation as text, and what in it is the assistant's: the part that training is to learn. */
export interface SupervisedText {
  text: string;
  /** In UTF-16 units, in order. */
  spans: Span[];
}

/**
 * Renders a conversation and finds the assistant's part: what the template marks by `{% generation %}`; for a template
 * without, each assistant message's text and the special token that ends its turn (`<|im_end|>`), by offsets.
 * Throws RefusedRow where it cannot be known.
 */
export function superviseText(
  template: ChatTemplate,
  messages: readonly Message[],
  specialTokens: readonly string[],
): SupervisedText {
  const { text, generated } = template.render(messages);
  if (template.hasGenerationTags) return { text, spans: generated };
  const turns = messages.flatMap((message, index) => (message.role === "assistant" ? [index] : []));
  const contents = contentSpans(template, messages, turns, text);
  const spans = turns.map((index, turn): Span => {
    // The turn begins where the model would be asked to go on. A template that renders the messages before
    // differently once more follow (it drops earlier reasoning) makes that no prefix: then only the content counts.
    const prompt = render(template, messages.slice(0, index), true);
    const promptEnd = prompt !== null && text.startsWith(prompt) ? prompt.length : null;
    const content = contents?.[turn];
    if (content) {
      const start = promptEnd !== null && promptEnd <= content.start ? promptEnd : content.start;
      return { start, end: endOfTurn(text, content.end, specialTokens) };
    }
    const whole = render(template, messages.slice(0, index + 1), false);
    if (promptEnd === null || whole === null || !text.startsWith(whole)) {
      throw new RefusedRow(
        `the place of message ${index} in the rendered text is unknown: the template rewrites it`,
      );
    }
    // Without the newline that most templates put behind a turn, which the model does not write.
    return { start: promptEnd, end: stripEnd(text.slice(0, whole.length)).length };
  });
  for (let i = 1; i < spans.length; i += 1) {
    if (spans[i]!.start < spans[i - 1]!.end)
      throw new RefusedRow("the assistant's turns overlap in the rendered text");
  }
  return { text, spans };
}

const SECRET = randomBytes(16).toString("hex");
const START_MARK = `\ue000${SECRET}\ue001`;
const END_MARK = `\ue002${SECRET}\ue003`;

/**
 * Where each assistant message's visible text stands: rendered with marks around it, which must change nothing else.
 * Null where the template does more to it than trim it or cut its reasoning off.
 */
function contentSpans(
  template: ChatTemplate,
  messages: readonly Message[],
  turns: readonly number[],
  text: string,
): Span[] | null {
  const marked = messages.map((message, index) => (turns.includes(index) ? markContent(message) : message));
  if (marked.includes(null as never)) return null;
  const rendered = render(template, marked as Message[], false);
  const unmarked = rendered === null ? null : removeMarks(rendered, START_MARK, END_MARK);
  return unmarked?.text === text && unmarked.generated.length === turns.length ? unmarked.generated : null;
}

/** Marks within the spaces at both ends (templates trim) and behind the reasoning (templates drop it). */
function markContent(message: Message): Message | null {
  const { content } = message;
  if (typeof content !== "string") return null;
  const reasoningEnd = content.lastIndexOf("</think>");
  const head = reasoningEnd < 0 ? "" : content.slice(0, reasoningEnd + "</think>".length);
  const visible = strip(content.slice(head.length));
  if (visible === "") return null;
  const start = content.length - stripStart(content.slice(head.length)).length;
  const end = start + visible.length;
  return {
    ...message,
    content: `${content.slice(0, start)}${START_MARK}${visible}${END_MARK}${content.slice(end)}`,
  };
}

function render(
  template: ChatTemplate,
  messages: readonly Message[],
  addGenerationPrompt: boolean,
): string | null {
  try {
    return template.render(messages, { addGenerationPrompt }).text;
  } catch (error) {
    // Part of a conversation may be one that the template refuses: then it says nothing about the whole.
    if (error instanceof RefusedRow) return null;
    throw error;
  }
}

/** Behind the special token that follows `at`, spaces between; else `at`. */
function endOfTurn(text: string, at: number, specialTokens: readonly string[]): number {
  const next = text.length - stripStart(text.slice(at)).length;
  for (const token of specialTokens) if (text.startsWith(token, next)) return next + token.length;
  return at;
}

/** What a mask needs of a tokenizer's encoding; positions count Unicode code points, as tokenizers' offsets do. */
export interface TokenOffsets {
  getLength(): number;
  charToToken(position: number): number | null;
  tokenToChars(token: number): [number, number] | null | undefined;
}

/**
 * Sets mask[token] to 1 for every token that overlaps a span, transformers' rule: it starts before the span's end and
 * ends after its start. Asks for the few tokens at a span's borders, since fetching all offsets costs as much as
 * tokenising.
 */
export function maskTokens(
  encoding: TokenOffsets,
  text: string,
  spans: readonly Span[],
  mask: Uint8Array,
): void {
  for (const { start, end } of codePointSpans(text, spans)) {
    let first: number | null = null;
    // Characters that a normalizer removed belong to no token.
    for (let at = start; at < end && first === null; at += 1) first = encoding.charToToken(at);
    if (first === null) continue;
    let last: number | null = null;
    for (let at = end - 1; at >= start && last === null; at -= 1) last = encoding.charToToken(at);
    last ??= first;
    // A character of several tokens (the bytes of an emoji) gives only its first.
    while (last + 1 < encoding.getLength()) {
      const chars = encoding.tokenToChars(last + 1);
      if (!chars || chars[0] >= end || chars[1] <= start) break;
      last += 1;
    }
    mask.fill(1, first, last + 1);
  }
}

/** UTF-16 positions as counts of code points: they differ behind the first emoji. */
function codePointSpans(text: string, spans: readonly Span[]): Span[] {
  if (!/[\ud800-\udbff]/.test(text)) return [...spans];
  let unit = 0;
  let point = 0;
  const pointAt = (target: number): number => {
    for (; unit < target; point += 1) unit += text.codePointAt(unit)! > 0xffff ? 2 : 1;
    return point;
  };
  return spans.map(({ start, end }) => ({ start: pointAt(start), end: pointAt(end) }));
}
