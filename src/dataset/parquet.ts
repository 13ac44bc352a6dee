import { readdirSync } from "node:fs";
import { join } from "node:path";
import { type FileMetaData, parquetMetadataAsync, parquetSchema } from "hyparquet";
import type { SchemaTree } from "hyparquet/src/types.js";
import { RunError } from "../base/errors.ts";
import { cutFile, FileWindow } from "./file-window.ts";
import { type ListLevels, type ListPage, readListPages } from "./parquet-pages.ts";
import {
  badDataset,
  IDS,
  MASK,
  missingColumn,
  type RowBatch,
  RowCollector,
  type RowSource,
  rowAt,
  type SourceFile,
} from "./rows.ts";

/** One file, or the files that the Hub's layout calls one split (`train-00000-of-00004.parquet`), in name order. */
export async function openParquet(path: string, paths: string[]): Promise<RowSource> {
  const files: SourceFile[] = [];
  const masks = new Set<boolean>();
  for (const each of paths) {
    const window = await FileWindow.open(each);
    try {
      files.push(window.file);
      masks.add(findColumns(await readFooter(window), each).mask !== null);
    } finally {
      await window.close();
    }
  }
  if (masks.size > 1) {
    throw badDataset(path, "expected loss_mask in all of its files or in none, found it in some");
  }
  return { kind: "parquet", path, files, batches: (signal) => readFiles(path, paths, signal) };
}

/** The Parquet files of a directory that are one split; throws where it holds several and none is named. */
export function parquetFilesOf(directory: string, split?: string): string[] {
  const names = readdirSync(directory)
    .filter((name) => name.endsWith(".parquet"))
    .sort();
  const splits = [...new Set(names.map(splitOf))];
  if (split === undefined && splits.length > 1) {
    throw badDataset(directory, `it holds several splits: one must be named (it has ${splits.join(", ")})`, {
      hint: `--split ${splits[0]}`,
    });
  }
  if (split !== undefined && !splits.includes(split)) {
    throw badDataset(directory, `it has no split "${split}" (it has ${splits.join(", ") || "none"})`);
  }
  return names
    .filter((name) => split === undefined || splitOf(name) === split)
    .map((name) => join(directory, name));
}

/** "train" of "train-00000-of-00004.parquet" and of "train.parquet". */
function splitOf(name: string): string {
  return name.replace(/\.parquet$/, "").replace(/-\d+(-of-\d+)?(-[0-9a-f]+)?$/, "");
}

/** The footer, with a message that names the file where there is none. */
export async function readFooter(window: FileWindow): Promise<FileMetaData> {
  const file = {
    byteLength: window.fileBytes,
    slice: async (start: number, end = window.fileBytes) =>
      (await window.readNew(start, Math.min(end, window.fileBytes) - start)).buffer as ArrayBuffer,
  };
  try {
    return await parquetMetadataAsync(file, { parsers: undefined });
  } catch (cause) {
    if (cause instanceof RunError) throw cause;
    throw cutFile(
      window.path,
      "expected a Parquet footer at its end, found none: it was cut or is no Parquet",
      cause,
    );
  }
}

interface ListColumn {
  name: string;
  /** Index among a row group's column chunks. */
  chunk: number;
  levels: ListLevels;
}

interface Columns {
  ids: ListColumn;
  mask: ListColumn | null;
}

function findColumns(footer: FileMetaData, path: string): Columns {
  const root = parquetSchema(footer);
  const leaves = leavesOf(root);
  const ids = listColumn(root, leaves, IDS, path);
  if (!ids)
    throw missingColumn(
      path,
      root.children.map((child) => child.element.name),
    );
  return { ids, mask: listColumn(root, leaves, MASK, path) };
}

function listColumn(root: SchemaTree, leaves: SchemaTree[], name: string, path: string): ListColumn | null {
  const top = root.children.find((child) => child.element.name === name);
  if (!top) return null;
  const chain: SchemaTree[] = [];
  for (let node: SchemaTree | undefined = top; node; node = node.children[0]) {
    chain.push(node);
    if (node.children.length > 1) break;
  }
  const leaf = chain.at(-1)!;
  const repeated = chain.filter((node) => node.element.repetition_type === "REPEATED");
  const type = leaf.element.type;
  const isInteger = type === "INT32" || type === "INT64" || (type === "BOOLEAN" && name === MASK);
  if (leaf.children.length > 0 || repeated.length !== 1 || !isInteger) {
    throw badDataset(
      path,
      `expected ${name} to be a list of integers, found ${type ?? "a group"} repeated ${repeated.length} times`,
    );
  }
  let definition = 0;
  let item = 0;
  for (const node of chain) {
    if (node.element.repetition_type !== "REQUIRED") definition += 1;
    if (node === repeated[0]) item = definition;
  }
  return {
    name,
    chunk: leaves.indexOf(leaf),
    levels: { repetition: 1, value: definition, item, empty: item - 1 },
  };
}

function leavesOf(node: SchemaTree): SchemaTree[] {
  return node.children.length === 0 ? [node] : node.children.flatMap(leavesOf);
}

async function* readFiles(path: string, paths: string[], signal?: AbortSignal): AsyncGenerator<RowBatch> {
  const collector = new RowCollector(path, 0);
  for (const each of paths) yield* readFile(each, collector, signal);
  if (!collector.isEmpty) yield collector.take();
}

async function* readFile(
  path: string,
  collector: RowCollector,
  signal?: AbortSignal,
): AsyncGenerator<RowBatch> {
  // A window for each column: their pages lie far apart.
  const window = await FileWindow.open(path);
  const maskWindow = await FileWindow.open(path);
  try {
    const footer = await readFooter(window);
    const { ids, mask } = findColumns(footer, path);
    const firstRow = collector.row;
    const idLists = new ListStream(readLists(window, footer, ids, firstRow));
    const maskLists = mask ? new ListStream(readLists(maskWindow, footer, mask, firstRow)) : null;
    for (;;) {
      signal?.throwIfAborted();
      const rows = Math.min(await idLists.ready(), maskLists ? await maskLists.ready() : Infinity);
      if (rows === 0) break;
      const taken = idLists.take(rows);
      collector.add(taken.values, taken.lengths, maskLists ? maskLists.take(rows) : null);
      if (collector.full) yield collector.take();
    }
    const expected = Number(footer.num_rows);
    if (collector.row - firstRow !== expected) {
      throw cutFile(path, `expected ${expected} rows, found ${collector.row - firstRow}`);
    }
  } finally {
    await window.close();
    await maskWindow.close();
  }
}

/** Whole rows of one column. */
interface Lists {
  values: Int32Array;
  lengths: Int32Array;
}

/** Hands out rows from a stream of lists in whatever counts the other column's pages allow. */
class ListStream {
  readonly #lists: AsyncIterator<Lists>;
  #current: Lists = { values: new Int32Array(0), lengths: new Int32Array(0) };
  #row = 0;
  #value = 0;

  constructor(lists: AsyncGenerator<Lists>) {
    this.#lists = lists[Symbol.asyncIterator]();
  }

  /** Rows that can be taken now; 0 at the end. */
  async ready(): Promise<number> {
    while (this.#row === this.#current.lengths.length) {
      const next = await this.#lists.next();
      if (next.done) return 0;
      this.#current = next.value;
      this.#row = 0;
      this.#value = 0;
    }
    return this.#current.lengths.length - this.#row;
  }

  take(rows: number): Lists {
    const lengths = this.#current.lengths.subarray(this.#row, this.#row + rows);
    let tokens = 0;
    for (const length of lengths) tokens += length;
    const values = this.#current.values.subarray(this.#value, this.#value + tokens);
    this.#row += rows;
    this.#value += tokens;
    return { values, lengths };
  }
}

/** A row may go on from one page to the next, so the last row of a page waits for what follows. */
async function* readLists(
  window: FileWindow,
  footer: FileMetaData,
  column: ListColumn,
  firstRow: number,
): AsyncGenerator<Lists> {
  let row = firstRow;
  for (const group of footer.row_groups) {
    const chunk = group.columns[column.chunk];
    let open: { values: Int32Array; length: number } | null = null;
    try {
      if (!chunk?.meta_data || chunk.file_path) throw new Error("a row group without its column chunk");
      for await (const page of readListPages(window, chunk.meta_data, column.levels)) {
        const cut: Cut = cutRows(page, column, open, row, window.path);
        open = cut.open;
        row += cut.lists.lengths.length;
        if (cut.lists.lengths.length > 0) yield cut.lists;
      }
    } catch (cause) {
      if (cause instanceof RunError) throw cause;
      const message = cause instanceof Error ? cause.message : String(cause);
      throw cutFile(window.path, `${column.name} near row ${row}: ${message}`, cause);
    }
    if (open) {
      row += 1;
      yield { values: open.values, lengths: Int32Array.of(open.length) };
    }
  }
}

interface Cut {
  lists: Lists;
  open: { values: Int32Array; length: number } | null;
}

/** The rows that end in this page (the open one of before first), and the one that it leaves open. */
function cutRows(page: ListPage, column: ListColumn, before: Cut["open"], row: number, path: string): Cut {
  const { levels, name } = column;
  const { repetition, definition } = page;
  const lengths: number[] = [];
  let length = before?.length ?? -1;
  for (let i = 0; i < repetition.length; i += 1) {
    if (repetition[i] === 0) {
      if (length >= 0) lengths.push(length);
      length = 0;
    } else if (length < 0) {
      throw new Error("a row group begins inside a row");
    }
    const level = definition[i]!;
    if (level === levels.value) {
      length += 1;
    } else if (level !== levels.empty) {
      throw badDataset(
        path,
        `row ${row + lengths.length}: ${name} ${level < levels.empty ? "is null" : "holds null"}`,
        {
          hint: "filter such rows out before saving",
        },
      );
    }
  }
  const all = Int32Array.from(lengths);
  let values = page.values;
  if (before && before.values.length > 0) {
    values = new Int32Array(before.values.length + page.values.length);
    values.set(before.values);
    values.set(page.values, before.values.length);
  }
  if (page.misfit >= 0) {
    const at = page.misfit + (before?.values.length ?? 0);
    throw badDataset(path, `row ${row + rowAt(all, at)}: ${name} holds a value that is no int32`);
  }
  let ended = 0;
  for (const each of all) ended += each;
  return {
    lists: { values: values.subarray(0, ended), lengths: all },
    open: length < 0 ? null : { values: values.slice(ended), length },
  };
}
