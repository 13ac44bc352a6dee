import { readdirSync, type Stats, statSync } from "node:fs";
import { extname } from "node:path";
import { cannotRead } from "./file-window.ts";
import { openJsonl } from "./jsonl.ts";
import { badDataset, type RowSource } from "./rows.ts";
import { isSaveToDisk, openSaveToDisk } from "./save-to-disk.ts";

/**
 * Finds out what `path` is: a directory that `save_to_disk` wrote (a DatasetDict needs `split`), a Parquet file or a
 * directory of them, or JSON lines. Throws a RunError (configuration) that says what was looked for, or (integrity)
 * for a file that was cut. Only headers are read; the rows themselves are checked as they pass.
 */
export async function openDataset(path: string, options: { split?: string } = {}): Promise<RowSource> {
  const { split } = options;
  const stats = statOf(path);
  if (stats.isDirectory()) return openDirectory(path, split);
  if (split !== undefined) {
    throw badDataset(path, `a single file has no splits, so none is called "${split}"`, {
      hint: "leave --split out",
    });
  }
  switch (extname(path)) {
    case ".parquet":
      return (await loadParquet()).openParquet(path, [path]);
    case ".jsonl":
    case ".json":
    case ".ndjson":
      return openJsonl(path);
    case ".arrow":
      throw badDataset(path, "a single Arrow file does not say whether it is the whole dataset", {
        hint: "name the directory that save_to_disk wrote, the one with state.json",
      });
    default:
      throw badDataset(
        path,
        "expected a save_to_disk directory, or a file that ends in .parquet, .jsonl or .json",
      );
  }
}

async function openDirectory(path: string, split: string | undefined): Promise<RowSource> {
  if (isSaveToDisk(path)) return openSaveToDisk(path, split);
  const names = readdirSync(path);
  if (names.some((name) => name.endsWith(".parquet"))) {
    const { openParquet, parquetFilesOf } = await loadParquet();
    return openParquet(path, parquetFilesOf(path, split));
  }
  throw badDataset(
    path,
    "looked for state.json or dataset_dict.json (save_to_disk) or *.parquet files, and found none",
    { hint: names.some((name) => name.endsWith(".jsonl")) ? "name the .jsonl file itself" : undefined },
  );
}

/** Its decoders are a tenth of a second to load, which no other format needs. */
function loadParquet() {
  return import("./parquet.ts");
}

function statOf(path: string): Stats {
  try {
    return statSync(path);
  } catch (cause) {
    throw cannotRead(path, cause);
  }
}
