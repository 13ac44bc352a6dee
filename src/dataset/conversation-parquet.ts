import { parquetReadObjects, parquetSchema } from "hyparquet";
import { compressors } from "hyparquet-compressors";
import { FileWindow } from "./file-window.ts";
import { readFooter } from "./parquet.ts";
import { badDataset } from "./rows.ts";

/** Text columns are decoded a row group at a time, at some times its size. */
const ROW_GROUP_BYTES_MAX = 512 * 1024 * 1024;

/**
 * The rows of a Parquet file that hold conversations, each as JSON of its column of messages and of `tools` where it
 * has one; a row group at a time.
 */
export async function* readParquetConversations(
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
