import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { Tokenizer } from "tokenizers";
import { EXIT, RunError } from "../base/errors.ts";
import { type ChatTemplate, loadChatTemplate } from "./chat-template.ts";
import { messagesOf, RefusedRow } from "./conversation.ts";
import { maskTokens, type SupervisedText, superviseText } from "./loss-mask.ts";

/** Rows of conversations, each the JSON of its row. */
export interface ConversationChunk {
  firstRow: number;
  rows: string[];
}

/** The rows of a chunk that could be tokenised, and those that could not. */
export interface TokenChunk {
  /** [tokens], end to end. */
  ids: Int32Array;
  /** [tokens], 0 or 1. */
  mask: Uint8Array;
  /** [rows that were kept] */
  lengths: Int32Array;
  refused: { row: number; reason: string }[];
}

export interface ChunkTokenizerOptions {
  modelDir: string;
  messagesKey?: string;
}

/** Template and tokenizer of one model, as one thread holds them. */
export class ChunkTokenizer {
  readonly #tokenizer: Tokenizer;
  readonly #template: ChatTemplate;
  readonly #specialTokens: string[];
  readonly #messagesKey: string | undefined;

  /** Throws a RunError (configuration) for a directory without tokenizer.json or chat template. */
  constructor(options: ChunkTokenizerOptions) {
    const path = join(options.modelDir, "tokenizer.json");
    this.#messagesKey = options.messagesKey;
    this.#template = loadChatTemplate(options.modelDir);
    try {
      const json = readFileSync(path, "utf8");
      this.#tokenizer = Tokenizer.fromString(json);
      this.#specialTokens = specialTokensOf(JSON.parse(json));
    } catch (cause) {
      throw new RunError({
        op: "read tokenizer",
        subject: path,
        message: existsSync(path) ? "it is no tokenizer of a kind that is known" : "no such file",
        hint: "the model directory needs tokenizer.json; AutoTokenizer.from_pretrained(M).save_pretrained(M) writes it",
        exit: EXIT.configuration,
        cause,
      });
    }
    // A tokenizer.json may carry the truncation and padding it was trained with; rows are taken as they are.
    this.#tokenizer.disableTruncation();
    this.#tokenizer.disablePadding();
  }

  async tokenize(chunk: ConversationChunk): Promise<TokenChunk> {
    const texts: SupervisedText[] = [];
    const refused: TokenChunk["refused"] = [];
    chunk.rows.forEach((json, index) => {
      try {
        texts.push(this.#supervise(json));
      } catch (error) {
        if (!(error instanceof RefusedRow)) throw error;
        refused.push({ row: chunk.firstRow + index, reason: error.message });
      }
    });
    const encodings =
      texts.length === 0
        ? []
        : await this.#tokenizer.encodeBatch(
            texts.map(({ text }) => text),
            { addSpecialTokens: false },
          );
    const lengths = Int32Array.from(encodings, (encoding) => encoding.getLength());
    const tokens = lengths.reduce((sum, length) => sum + length, 0);
    const ids = new Int32Array(tokens);
    const mask = new Uint8Array(tokens);
    let at = 0;
    encodings.forEach((encoding, index) => {
      const end = at + lengths[index]!;
      const { text, spans } = texts[index]!;
      ids.set(encoding.getIds(), at);
      maskTokens(encoding, text, spans, mask.subarray(at, end));
      at = end;
    });
    return { ids, mask, lengths, refused };
  }

  #supervise(json: string): SupervisedText {
    const messages = messagesOf(JSON.parse(json), this.#messagesKey);
    const supervised = superviseText(this.#template, messages, this.#specialTokens);
    // Half a surrogate pair has no UTF-8: Python refuses it, and the tokenizer would replace it silently.
    if (/\p{Surrogate}/u.test(supervised.text))
      throw new RefusedRow("the text holds half of a surrogate pair");
    return supervised;
  }
}

/** Longest first, so that none hides another that it begins. */
function specialTokensOf(json: { added_tokens?: { content: string; special: boolean }[] }): string[] {
  return (json.added_tokens ?? [])
    .filter(({ special, content }) => special && content !== "")
    .map(({ content }) => content)
    .sort((a, b) => b.length - a.length);
}
