import { extname } from "node:path";
import type { ConversationChunk } from "./chunk-tokenizer.ts";
import { readLines } from "./lines.ts";
import { badDataset } from "./rows.ts";

/** Work for one thread at a time: large enough to amortise a message between threads, small enough to share out. */
const CHUNK_ROWS = 128;
const CHUNK_CHARS = 512 * 1024;

/**
 * Conversations of a JSON lines or Parquet file, each row as JSON, from row 0 on. Throws a RunError (configuration) that
 * names the line where one is no JSON, and for a Parquet file without a column of messages.
 */
export function readConversations(
  path: string,
  options: { messagesKey?: string; signal?: AbortSignal } = {},
): AsyncGenerator<ConversationChunk> {
  switch (extname(path)) {
    case ".jsonl":
    case ".json":
    case ".ndjson":
      return inChunks(jsonRows(path, options.signal));
    case ".parquet":
      return inChunks(parquetRows(path, options.messagesKey, options.signal));
    default:
      throw badDataset(path, "expected conversations in a file that ends in .jsonl, .json or .parquet");
  }
}

async function* inChunks(groups: AsyncIterable<string[]>): AsyncGenerator<ConversationChunk> {
  let chunk: ConversationChunk = { firstRow: 0, rows: [] };
  let chars = 0;
  for await (const group of groups) {
    for (const row of group) {
      chunk.rows.push(row);
      chars += row.length;
      if (chunk.rows.length < CHUNK_ROWS && chars < CHUNK_CHARS) continue;
      yield chunk;
      chunk = { firstRow: chunk.firstRow + chunk.rows.length, rows: [] };
      chars = 0;
    }
  }
  if (chunk.rows.length > 0) yield chunk;
}

async function* parquetRows(
  path: string,
  messagesKey: string | undefined,
  signal?: AbortSignal,
): AsyncGenerator<string[]> {
  // Its decoders are a tenth of a second to load, which JSON lines do not need.
  const { readParquetConversations } = await import("./conversation-parquet.ts");
  yield* readParquetConversations(path, messagesKey, signal);
}

async function* jsonRows(path: string, signal?: AbortSignal): AsyncGenerator<string[]> {
  for await (const lines of readLines(path, { signal })) {
    const rows: string[] = [];
    for (let i = 0; i < lines.starts.length; i += 1) {
      const text = lines.bytes.toString("utf8", lines.starts[i]!, lines.ends[i]!);
      refuseBroken(text, path, lines.numbers[i]!);
      rows.push(text);
    }
    yield rows;
  }
}

/** Parsed here and again by the thread that tokenises: a broken line ends the run, and only here is its number known. */
function refuseBroken(text: string, path: string, line: number): void {
  try {
    JSON.parse(text);
  } catch (cause) {
    throw badDataset(
      path,
      `line ${line}: not JSON (${cause instanceof Error ? cause.message : String(cause)})`,
      {
        hint: `mend or drop that line: sed -n '${line}p' FILE shows it`,
        cause,
      },
    );
  }
}
