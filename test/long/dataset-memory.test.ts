import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const RSS_BYTES_MAX = 600 * 2 ** 20;
const BYTES_MIN = 2e9;

/** Writes one dataset of the same 180 million tokens in the shape asked for. Rows of 1 to 1,023 tokens, one of 2 million. */
const GENERATE = `
import json, os, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
shape, path = sys.argv[1:]
random = np.random.default_rng(20261201)
lengths = random.integers(1, 1024, 350_000)
lengths[1000] = 2_000_000
offsets = np.concatenate([[0], np.cumsum(lengths)])
ids = random.integers(0, 151_000, offsets[-1]).astype(np.int32)
mask = (np.arange(offsets[-1]) % 97 > 20).astype(np.int64)

def table(id_type):
    def lists(values, item):
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values, item))
    return pa.table({"input_ids": lists(ids, id_type), "loss_mask": lists(mask, pa.int64())})

if shape.startswith("arrow"):
    os.mkdir(path)
    name = "data-00000-of-00001.arrow"
    rows = table(pa.int32())
    with pa.OSFile(os.path.join(path, name), "wb") as f, pa.ipc.new_stream(f, rows.schema) as w:
        w.write_table(rows, max_chunksize=1000 if shape == "arrow-batches" else len(lengths))
    with open(os.path.join(path, "state.json"), "w") as f:
        json.dump({"_data_files": [{"filename": name}]}, f)
elif shape == "parquet-plain":
    pq.write_table(table(pa.int64()), path, row_group_size=len(lengths), compression="none", use_dictionary=False)
elif shape == "parquet-default":
    pq.write_table(table(pa.int32()), path, row_group_size=len(lengths))
else:
    with open(path, "w") as f:
        for start, end in zip(offsets[:-1], offsets[1:]):
            f.write('{"text": "%s", "input_ids": %s, "loss_mask": %s}\\n'
                    % ("other text " * 60, ids[start:end].tolist(), mask[start:end].tolist()))
`;

/** The built pass in a process of its own; what it held at most is asked of the kernel at its end. */
const PASS = `
const [dist, path, rows] = process.argv.slice(1);
const { openDataset } = await import(dist + "/dataset/open.js");
const { writeRowsFile } = await import(dist + "/dataset/rows-file-writer.js");
const source = await openDataset(path);
const bytes = source.files.reduce((sum, file) => sum + file.bytes, 0);
const startMs = performance.now();
const { hash, tokens, rows: count } = await writeRowsFile(source, rows);
const seconds = (performance.now() - startMs) / 1000;
const rssBytes = process.resourceUsage().maxRSS * 1024;
console.log(JSON.stringify({ hash, tokens, rows: count, bytes, seconds, rssBytes }));
`;

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-memory-"));
});
afterAll(() => {
  rmSync(directory, { recursive: true, force: true });
});

function output(command: string, args: string[]): string {
  const child = spawnSync(command, args, { encoding: "utf8" });
  if (child.status !== 0) throw new Error(`${command}: ${child.stderr || child.error}`);
  return child.stdout;
}

const hashes = new Set<string>();

test.each([
  ["arrow-batches", "dataset", BYTES_MIN],
  ["arrow-one-batch", "dataset", BYTES_MIN],
  ["parquet-plain", "dataset.parquet", BYTES_MIN],
  // Much smaller on disk, but all of it in one row group whose pages stand for millions of values.
  ["parquet-default", "dataset.parquet", 0],
  ["jsonl", "dataset.jsonl", BYTES_MIN],
])(
  "2 GB as %s become a rows file within 600 MiB, the same one as every other shape",
  (shape, name, bytesMin) => {
    const path = join(directory, name);
    const rows = join(directory, "rows.safetensors");
    const python = join(ROOT, ".cache/venv/bin/python");
    output(existsSync(python) ? python : "python3", ["-c", GENERATE, shape, path]);
    const dist = pathToFileURL(join(ROOT, "dist")).href;
    const found = JSON.parse(output(process.execPath, ["--input-type=module", "-e", PASS, dist, path, rows]));
    rmSync(path, { recursive: true });
    rmSync(rows);
    const { bytes, seconds, rssBytes } = found;
    console.log(
      `${shape}: ${(bytes / 1e6).toFixed(0)} MB, ${(bytes / 1e6 / seconds).toFixed(0)} MB/s, peak ${(rssBytes / 2 ** 20).toFixed(0)} MiB`,
    );
    expect(bytes).toBeGreaterThan(bytesMin);
    expect(found.rows).toBe(350_000);
    expect(rssBytes).toBeLessThan(RSS_BYTES_MAX);
    hashes.add(found.hash);
    expect(hashes.size).toBe(1);
  },
);
