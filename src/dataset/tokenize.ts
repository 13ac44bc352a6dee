import { EXIT, RunError } from "../base/errors.ts";
import type { ConversationChunk, TokenChunk } from "./chunk-tokenizer.ts";
import { readConversations } from "./conversation-files.ts";
import { badDataset } from "./rows.ts";
import { SaveToDiskWriter } from "./save-to-disk-writer.ts";
import { startTokenizeThreads, type TokenizeThreads } from "./tokenize-threads.ts";

export interface TokenizeOptions {
  /** Hugging Face model directory: tokenizer.json and a chat template. */
  modelDir: string;
  /** Conversations: .jsonl, .json or .parquet. */
  input: string;
  /** The directory to be made, as save_to_disk makes it; must not exist. */
  output: string;
  /** Default 1: everything in the calling thread. */
  threads?: number;
  /** Column of the messages; default `messages`, else `conversations`. */
  messagesKey?: string;
  /** Input rows [startRow, endRow); default all. */
  startRow?: number;
  endRow?: number | null;
  /** Rows of more tokens are left out or cut; default no bound. */
  maxTokens?: number | null;
  long?: "skip" | "truncate";
  signal?: AbortSignal;
  onProgress?: (progress: { rows: number; tokens: number; refused: number }) => void;
}

export interface TokenizeResult {
  output: string;
  files: string[];
  /** Rows written, and their tokens. */
  rows: number;
  tokens: number;
  /** Tokens whose mask is 1. */
  lossTokens: number;
  /** Rows written whose mask is 0 throughout: they teach nothing. */
  rowsWithoutLoss: number;
  /** Rows over maxTokens that were left out, or cut. */
  longSkipped: number;
  longTruncated: number;
  /** Input rows left out because they could not be tokenised rightly: how many, and the first of them with reasons. */
  refusedCount: number;
  refused: { row: number; reason: string }[];
}

/** Reasons beyond this many are only counted. */
const REFUSED_LISTED = 1_000;

/** Beside the dataset: what it was made from, and which input rows are not in it. load_from_disk does not look at it. */
export const TOKENIZE_RECORD = "forebay-tokenize.json";

/**
 * Conversations into a tokenised dataset with loss mask, by the model's own chat template. Output rows keep the input's
 * order; rows that are refused or too long are left out. Bounded memory. Throws a RunError for a broken line, a missing
 * column or template, an output that exists, or no row at all; then nothing is left behind.
 */
export async function tokenizeConversations(options: TokenizeOptions): Promise<TokenizeResult> {
  const { modelDir, messagesKey, threads = 1 } = options;
  const pool = startTokenizeThreads({ modelDir, messagesKey }, threads);
  try {
    const writer = await SaveToDiskWriter.create(options.output);
    try {
      const counts = await copyRows(options, pool, writer);
      if (writer.rows === 0) throw nothingLeft(options, counts);
      const { files, ...sums } = writer.finish({ [TOKENIZE_RECORD]: recordOf(options, counts) });
      return { output: options.output, files, ...sums, ...counts };
    } finally {
      writer.discard();
    }
  } finally {
    await pool.close();
  }
}

type Counts = Pick<
  TokenizeResult,
  "rowsWithoutLoss" | "longSkipped" | "longTruncated" | "refusedCount" | "refused"
>;

async function copyRows(
  options: TokenizeOptions,
  pool: TokenizeThreads,
  writer: SaveToDiskWriter,
): Promise<Counts> {
  const counts: Counts = {
    rowsWithoutLoss: 0,
    longSkipped: 0,
    longTruncated: 0,
    refusedCount: 0,
    refused: [],
  };
  const underWay: Promise<TokenChunk>[] = [];
  const settleOldest = async () => {
    const chunk = await underWay.shift()!;
    for (const each of chunk.refused) {
      counts.refusedCount += 1;
      if (counts.refused.length < REFUSED_LISTED) counts.refused.push(each);
    }
    writer.add(applyLong(chunk, options, counts));
    options.onProgress?.({ rows: writer.rows, tokens: writer.tokens, refused: counts.refusedCount });
  };
  try {
    for await (const chunk of chunksInRange(options)) {
      options.signal?.throwIfAborted();
      if (underWay.length >= pool.chunksMax) await settleOldest();
      const tokens = pool.tokenize(chunk);
      // It is awaited in its turn; until then a failure must not count as unhandled.
      tokens.catch(() => {});
      underWay.push(tokens);
    }
    while (underWay.length > 0) {
      options.signal?.throwIfAborted();
      await settleOldest();
    }
  } finally {
    await Promise.allSettled(underWay);
  }
  return counts;
}

async function* chunksInRange(options: TokenizeOptions): AsyncGenerator<ConversationChunk> {
  const { input, messagesKey, signal, startRow = 0 } = options;
  const endRow = options.endRow ?? Number.POSITIVE_INFINITY;
  for await (const { firstRow, rows } of readConversations(input, { messagesKey, signal })) {
    const start = Math.max(0, startRow - firstRow);
    const kept = rows.slice(start, Math.max(0, endRow - firstRow));
    if (kept.length > 0) yield { firstRow: firstRow + start, rows: kept };
    if (firstRow + rows.length >= endRow) return;
  }
}

/** Leaves long rows out or cuts them, and counts rows that teach nothing. */
function applyLong(chunk: TokenChunk, options: TokenizeOptions, counts: Counts): TokenChunk {
  const limit = options.maxTokens ?? Number.POSITIVE_INFINITY;
  const ids = new Int32Array(chunk.ids.length);
  const mask = new Uint8Array(chunk.mask.length);
  const lengths: number[] = [];
  let from = 0;
  let to = 0;
  for (const length of chunk.lengths) {
    const isLong = length > limit;
    if (isLong && options.long !== "truncate") {
      counts.longSkipped += 1;
    } else {
      const kept = isLong ? limit : length;
      if (isLong) counts.longTruncated += 1;
      ids.set(chunk.ids.subarray(from, from + kept), to);
      const rowMask = chunk.mask.subarray(from, from + kept);
      mask.set(rowMask, to);
      if (!rowMask.includes(1)) counts.rowsWithoutLoss += 1;
      lengths.push(kept);
      to += kept;
    }
    from += length;
  }
  return {
    ids: ids.subarray(0, to),
    mask: mask.subarray(0, to),
    lengths: Int32Array.from(lengths),
    refused: chunk.refused,
  };
}

function recordOf(options: TokenizeOptions, counts: Counts): string {
  const { startRow = 0, endRow = null, maxTokens = null, long = "skip", messagesKey = null } = options;
  const record = {
    format: "forebay-tokenize-1",
    input: options.input,
    model: options.modelDir,
    messages_key: messagesKey,
    rows: [startRow, endRow],
    max_tokens: maxTokens,
    long,
    long_skipped: counts.longSkipped,
    long_truncated: counts.longTruncated,
    rows_without_loss: counts.rowsWithoutLoss,
    refused_count: counts.refusedCount,
    refused: counts.refused,
  };
  return `${JSON.stringify(record, null, 2)}\n`;
}

function nothingLeft(options: TokenizeOptions, counts: Counts): RunError {
  const [first] = counts.refused;
  if (first === undefined) {
    return badDataset(options.input, "expected conversations, found none in the rows asked for");
  }
  return new RunError({
    op: "tokenize",
    subject: options.input,
    message: `none of its rows could be tokenised (${counts.refusedCount} refused); row ${first.row}: ${first.reason}`,
    safe: "nothing was written",
    hint: "name the column of the messages if it is another, and see that the chat template is the model's",
    exit: EXIT.configuration,
  });
}
