import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { readArrowSchema, readArrowStream } from "./arrow-stream.ts";
import { cannotRead, FileWindow, sourceFile } from "./file-window.ts";
import { badDataset, type RowBatch, RowCollector, type RowSource, type SourceFile } from "./rows.ts";

const STATE = "state.json";
const DICT = "dataset_dict.json";

/** Whether `directory` looks like the work of `save_to_disk` (a Dataset or a DatasetDict). */
export function isSaveToDisk(directory: string): boolean {
  return (
    existsSync(join(directory, STATE)) ||
    existsSync(join(directory, DICT)) ||
    readdirSync(directory).some((name) => name.endsWith(".arrow"))
  );
}

/**
 * Opens what `save_to_disk` wrote: state.json names the data files, whose order is the row order.
 * Throws for the 1.18 layout, a DatasetDict without `split`, and missing files.
 */
export async function openSaveToDisk(directory: string, split?: string): Promise<RowSource> {
  const root = splitDirectory(directory, split);
  const paths = dataFiles(root);
  const files = paths.map(statFile);
  const masks = new Set<boolean>();
  for (const path of paths) {
    const window = await FileWindow.open(path);
    try {
      masks.add((await readArrowSchema(window)).hasMask);
    } finally {
      await window.close();
    }
  }
  if (masks.size > 1) {
    throw badDataset(root, "expected loss_mask in all of its files or in none, found it in some");
  }
  return { kind: "save-to-disk", path: root, files, batches: (signal) => readFiles(root, paths, signal) };
}

async function* readFiles(root: string, paths: string[], signal?: AbortSignal): AsyncGenerator<RowBatch> {
  const collector = new RowCollector(root, 0);
  for (const path of paths) {
    const window = await FileWindow.open(path);
    try {
      yield* readArrowStream(window, collector, signal);
    } finally {
      await window.close();
    }
  }
  if (!collector.isEmpty) yield collector.take();
}

function splitDirectory(directory: string, split: string | undefined): string {
  if (!existsSync(join(directory, DICT))) {
    if (split !== undefined) {
      throw badDataset(directory, `it has no splits, so none is called "${split}"`, {
        hint: "leave --split out",
      });
    }
    return directory;
  }
  const { splits } = readJson(join(directory, DICT));
  const names = Array.isArray(splits) ? splits.filter((name) => typeof name === "string") : [];
  if (split !== undefined && names.includes(split)) return join(directory, split);
  const found = names.join(", ") || "none";
  throw badDataset(
    directory,
    split === undefined
      ? `it is a DatasetDict: a split must be named (it has ${found})`
      : `it has no split "${split}" (it has ${found})`,
    { hint: names[0] === undefined ? undefined : `--split ${names[0]}` },
  );
}

function dataFiles(root: string): string[] {
  const statePath = join(root, STATE);
  if (!existsSync(statePath)) {
    throw badDataset(root, `looked for ${STATE}, as save_to_disk writes it, and found none`, {
      hint: "name the directory that save_to_disk wrote; a copy may be incomplete, then copy it again",
    });
  }
  const state = readJson(statePath);
  const entries: unknown[] = Array.isArray(state._data_files) ? state._data_files : [];
  const names = entries.map((entry) => (isRecord(entry) ? entry.filename : undefined));
  if (names.length === 0 || !names.every((name) => typeof name === "string")) {
    throw badDataset(statePath, "expected _data_files with a filename in each, found none");
  }
  const indices = state._indices_data_files ?? state._indices_files;
  if (names.includes("dataset.arrow") || (Array.isArray(indices) && indices.length > 0)) {
    throw badDataset(
      root,
      "it has the layout of datasets 1.18 or older (dataset.arrow), which is not supported",
      {
        hint: "save it again with a current release: datasets.load_from_disk(OLD).save_to_disk(NEW)",
      },
    );
  }
  for (const name of names) {
    // A name that leads elsewhere is no work of save_to_disk.
    if (name === "" || name === ".." || /[/\\\0]/.test(name)) {
      throw badDataset(statePath, `expected plain file names, found "${name}"`);
    }
  }
  return names.map((name) => join(root, name));
}

function statFile(path: string): SourceFile {
  try {
    return sourceFile(path, statSync(path));
  } catch (cause) {
    throw cannotRead(path, cause);
  }
}

function readJson(path: string): Record<string, unknown> {
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, "utf8"));
  } catch (cause) {
    if (cause instanceof SyntaxError)
      throw badDataset(path, "expected JSON, found something else", { cause });
    throw cannotRead(path, cause);
  }
  if (!isRecord(json)) throw badDataset(path, "expected a JSON object");
  return json;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
