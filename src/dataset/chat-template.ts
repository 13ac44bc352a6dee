import { randomBytes } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parse, Template, tokenize } from "@huggingface/jinja";
import { EXIT, RunError } from "../base/errors.ts";
import { type Message, RefusedRow } from "./conversation.ts";
import { strip, stripEnd, stripStart } from "./python-text.ts";

/** A range [start, end) of a text in UTF-16 units. */
export interface Span {
  start: number;
  end: number;
}

export interface Rendered {
  text: string;
  /** What stood between `{% generation %}` and `{% endgeneration %}`, in order; empty for a template without them. */
  generated: Span[];
}

/**
 * The model's chat template: chat_template.jinja, else chat_template.json, else tokenizer_config.json (a list of named
 * ones gives "default"), with its special tokens. Throws a RunError (configuration) where there is none or it does not
 * parse.
 */
export function loadChatTemplate(modelDir: string): ChatTemplate {
  const config = readObject(join(modelDir, "tokenizer_config.json"));
  const specials = { ...readObject(join(modelDir, "special_tokens_map.json")), ...config };
  return new ChatTemplate(readTemplate(modelDir, config), namedTokens(specials), modelDir);
}

const START = "forebay_generation_start";
const END = "forebay_generation_end";

/** A compiled template. Renders as transformers does: trim_blocks, lstrip_blocks, tools and documents None. */
export class ChatTemplate {
  readonly hasGenerationTags: boolean;
  readonly #template: Template;
  readonly #tokens: Record<string, string>;
  /** Unguessable, so that no dataset can hold them; private-use characters, so that no template trims them. */
  readonly #marks: { [START]: string; [END]: string };

  constructor(source: string, tokens: Record<string, string>, subject: string) {
    const secret = randomBytes(16).toString("hex");
    this.#marks = { [START]: `\ue000${secret}\ue001`, [END]: `\ue002${secret}\ue003` };
    this.#tokens = tokens;
    this.hasGenerationTags = GENERATION_TAG.test(source.replace(/\{#.*?#\}/gs, ""));
    try {
      this.#template = compile(source);
    } catch (cause) {
      throw new RunError({
        op: "read chat template",
        subject,
        message: `its chat template cannot be used here: ${cause instanceof Error ? cause.message : String(cause)}`,
        hint: "a template in plain Jinja works; or tokenise with transformers and pass the save_to_disk directory",
        exit: EXIT.configuration,
        cause,
      });
    }
  }

  /** The text and its generated spans. Throws RefusedRow where the template refuses the messages. */
  render(messages: readonly Message[], options: { addGenerationPrompt?: boolean } = {}): Rendered {
    const { addGenerationPrompt = false } = options;
    const text = this.#render(messages, addGenerationPrompt, { [START]: "", [END]: "" });
    if (!this.hasGenerationTags) return { text, generated: [] };
    const marked = this.#render(messages, addGenerationPrompt, this.#marks);
    const unmarked = removeMarks(marked, this.#marks[START], this.#marks[END]);
    // A template that looks at its own generated text (trims or measures it) would see the marks, and differ.
    if (!unmarked || unmarked.text !== text) {
      throw new RefusedRow(
        "the template changes what stands between its generation tags, so their place is unknown",
      );
    }
    return unmarked;
  }

  #render(messages: readonly Message[], addGenerationPrompt: boolean, marks: Record<string, string>): string {
    try {
      return this.#template.render({
        ...this.#tokens,
        ...marks,
        ...STRIP_FUNCTIONS,
        messages,
        tools: null,
        documents: null,
        add_generation_prompt: addGenerationPrompt,
      });
    } catch (error) {
      throw new RefusedRow(
        `the template refuses it: ${error instanceof Error ? error.message : String(error)}`,
      );
    }
  }
}

const GENERATION_TAG = /\{%-?\s*generation\s*-?%\}/;

/**
 * @huggingface/jinja drops generation tags before it parses. Here they become expressions that print a mark, with the
 * tag's own whitespace control. Block tags differ from expressions in trim_blocks and lstrip_blocks, so those two are
 * done first, as its lexer does them.
 */
function compile(source: string): Template {
  const trimmed = (source.endsWith("\n") ? source.slice(0, -1) : source)
    .replace(/^[ \t]*(\{[#%-])/gm, "$1")
    .replace(/([#%-]\})\n/g, "$1");
  const marked = trimmed
    .replace(/\{%(-?)\s*generation\s*(-?)%\}/g, `{{$1 ${START} $2}}`)
    .replace(/\{%(-?)\s*endgeneration\s*(-?)%\}/g, `{{$1 ${END} $2}}`);
  // Its lexer would take one newline off the end once more.
  const template = new Template("");
  template.parsed = parse(tokenize(`${marked}\n`));
  stripAsPython(template.parsed);
  return template;
}

const stripFunction =
  (act: (text: string, chars?: string) => string) =>
  (value: unknown, chars: unknown): string =>
    act(value === undefined ? "" : String(value), typeof chars === "string" ? chars : undefined);

const STRIP_FUNCTIONS = {
  forebay_strip: stripFunction(strip),
  forebay_lstrip: stripFunction(stripStart),
  forebay_rstrip: stripFunction(stripEnd),
};

interface TreeNode {
  type: string;
  [field: string]: unknown;
}

/**
 * @huggingface/jinja 0.5.11 ignores what strip, lstrip and rstrip are given (Qwen's templates say lstrip('\n'), and an
 * answer that begins with a space would lose it), and trims other characters than Python does. Every such call, and the
 * filter trim, becomes a call of ours.
 */
function stripAsPython(tree: unknown): void {
  if (typeof tree !== "object" || tree === null) return;
  for (const child of Array.isArray(tree) ? tree : Object.values(tree)) stripAsPython(child);
  if (!isNode(tree)) return;
  const { callee, filter } = tree;
  if (
    tree.type === "CallExpression" &&
    isNode(callee) &&
    callee.type === "MemberExpression" &&
    !callee.computed
  ) {
    const name = `forebay_${nameOf(callee.property)}`;
    if (name in STRIP_FUNCTIONS) callInstead(tree, name, [callee.object, ...(tree.args as unknown[])]);
  } else if (tree.type === "FilterExpression" && isNode(filter)) {
    const args = filter.type === "CallExpression" ? (filter.args as unknown[]) : [];
    const name = filter.type === "CallExpression" ? nameOf(filter.callee) : nameOf(filter);
    if (name === "trim") callInstead(tree, "forebay_strip", [tree.operand, ...args]);
  }
}

function callInstead(node: TreeNode, name: string, args: unknown[]): void {
  Object.assign(node, { type: "CallExpression", callee: { type: "Identifier", value: name }, args });
}

function nameOf(node: unknown): unknown {
  return isNode(node) && node.type === "Identifier" ? node.value : undefined;
}

function isNode(value: unknown): value is TreeNode {
  return typeof value === "object" && value !== null && "type" in value && typeof value.type === "string";
}

/** The text without marks and the spans between them; null where they do not alternate. */
export function removeMarks(marked: string, startMark: string, endMark: string): Rendered | null {
  const pieces: string[] = [];
  const generated: Span[] = [];
  let length = 0;
  const keep = (piece: string) => {
    pieces.push(piece);
    length += piece.length;
  };
  for (let at = 0; ; ) {
    const startAt = marked.indexOf(startMark, at);
    const endsBefore = marked.slice(at, startAt < 0 ? undefined : startAt).includes(endMark);
    if (endsBefore) return null;
    if (startAt < 0) {
      keep(marked.slice(at));
      return { text: pieces.join(""), generated };
    }
    const endAt = marked.indexOf(endMark, startAt);
    if (endAt < 0) return null;
    keep(marked.slice(at, startAt));
    const inside = marked.slice(startAt + startMark.length, endAt);
    if (inside.includes(startMark)) return null;
    generated.push({ start: length, end: length + inside.length });
    keep(inside);
    at = endAt + endMark.length;
  }
}

function readTemplate(modelDir: string, config: Record<string, unknown>): string {
  const file = join(modelDir, "chat_template.jinja");
  if (existsSync(file)) return readFileSync(file, "utf8");
  const found = readObject(join(modelDir, "chat_template.json")).chat_template ?? config.chat_template;
  if (typeof found === "string") return found;
  if (Array.isArray(found)) {
    const named =
      found.find((entry) => entry?.name === "default") ?? (found.length === 1 ? found[0] : undefined);
    if (typeof named?.template === "string") return named.template;
  }
  throw new RunError({
    op: "read chat template",
    subject: modelDir,
    message: "looked for chat_template.jinja or chat_template in tokenizer_config.json, and found none",
    hint: "base models have none: use the model's chat version, or put a chat_template.jinja there",
    exit: EXIT.configuration,
  });
}

const NAMED_TOKENS = ["bos", "eos", "unk", "sep", "pad", "cls", "mask"].map((name) => `${name}_token`);

/** bos_token and the like, as text; each may be given as text or as an added token's object. */
function namedTokens(config: Record<string, unknown>): Record<string, string> {
  const tokens: Record<string, string> = {};
  for (const name of NAMED_TOKENS) {
    const value = config[name];
    const text = typeof value === "object" && value !== null && "content" in value ? value.content : value;
    if (typeof text === "string") tokens[name] = text;
  }
  return tokens;
}

/** An empty object where there is no such file. */
function readObject(path: string): Record<string, unknown> {
  if (!existsSync(path)) return {};
  try {
    const json: unknown = JSON.parse(readFileSync(path, "utf8"));
    if (typeof json === "object" && json !== null) return json as Record<string, unknown>;
  } catch (cause) {
    throw new RunError({
      op: "read chat template",
      subject: path,
      message: "expected JSON, found something else",
      hint: "the model directory is incomplete or damaged: fetch it again",
      exit: EXIT.configuration,
      cause,
    });
  }
  return {};
}
