import { extname } from "node:path";
import { parquetReadObjects, parquetSchema } from "hyparquet";
import { compressors } from "hyparquet-compressors";
import type { ConversationChunk } from "./chunk-tokenizer.ts";
import { FileWindow } from "./file-window.ts";
import { readLines } from "./lines.ts";
import { readFooter } from "./parquet.ts";
import { badDataset } from "./rows.ts";

/** Work for one thread at a time: large enough to amortise a message between threads, small enough to share out. */
const CHUNK_ROWS = 128;
const CHUNK_CHARS = 512 * 1024;

/** Text columns are decoded a row group at a time, at some times its size. */
const ROW_GROUP_BYTES_MAX = 512 * 1024 * 1024;

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

async function* parquetRows(
  path: string,
  messagesKey: string | undefined,
  signal?: AbortSignal,
): AsyncGenerator<string[]> {
  const window = await FileWindow.open(path);
  try {
    const metadata = await readFooter(window);
    const names = parquetSchema(metadata).children.map((child) => child.element.name);
    const wanted = messagesKey === undefined ? ["messages", "conversations"] : [messagesKey];
    const key = wanted.find((name) => names.includes(name));
    if (key === undefined) {
      throw badDataset(
        path,
        `expected a column ${wanted.join(" or ")}, found the columns: ${names.join(", ")}`,
      );
    }
    const columns = names.includes("tools") ? [key, "tools"] : [key];
    const file = {
      byteLength: window.fileBytes,
      slice: async (start: number, end = window.fileBytes) =>
        (await window.readNew(start, end - start)).buffer as ArrayBuffer,
    };
    let rowStart = 0;
    for (const group of metadata.row_groups) {
      signal?.throwIfAborted();
      const bytes = group.columns
        .filter((column) => columns.includes(column.meta_data?.path_in_schema[0] ?? ""))
        .reduce((sum, column) => sum + Number(column.meta_data?.total_uncompressed_size ?? 0), 0);
      if (bytes > ROW_GROUP_BYTES_MAX) {
        throw badDataset(path, `a row group of ${bytes} bytes is over the cap of ${ROW_GROUP_BYTES_MAX}`, {
          hint: "write it with smaller row groups: pyarrow.parquet.write_table(table, FILE, row_group_size=10000)",
        });
      }
      const rowEnd = rowStart + Number(group.num_rows);
      const rows = await parquetReadObjects({ file, metadata, columns, rowStart, rowEnd, compressors }).catch(
        (cause: unknown) => {
          throw badDataset(path, `rows ${rowStart} to ${rowEnd} cannot be decoded`, { cause });
        },
      );
      yield rows.map((row) => JSON.stringify(row, plainNumbers));
      rowStart = rowEnd;
    }
  } finally {
    await window.close();
  }
}

function plainNumbers(_: string, value: unknown): unknown {
  return typeof value === "bigint" ? Number(value) : value;
}
