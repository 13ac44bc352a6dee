import { spawnSync } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { afterAll, beforeAll, expect, test } from "vitest";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const FIXTURES = join(ROOT, "fixtures");

/** The built module in a Node process of its own, since only dist/ has a worker entry that Node 20 can start. */
const TOKENIZE = `
const [module, ...values] = process.argv.slice(1);
const [modelDir, input, output, threads] = values;
const { tokenizeConversations } = await import(module);
const result = await tokenizeConversations({ modelDir, input, output, threads: Number(threads) });
console.log(JSON.stringify(result));
`;

/**
 * Opens the directory with Hugging Face datasets and compares it, row by row, with what transformers tokenised: as the
 * tensors that a trainer gets, and as the lists that are stored.
 */
const LOAD = `
import json, sys
import datasets, torch
loaded = datasets.load_from_disk(sys.argv[1])
lists = loaded.with_format(None)
reference = [json.loads(line) for line in open(sys.argv[2])]
NAMES = ("input_ids", "loss_mask", "seq_len")
differ = [i for i, row in enumerate(reference) for name in NAMES
          if not torch.equal(loaded[i][name], torch.tensor(row[name])) or lists[i][name] != row[name]]
print(json.dumps({"rows": len(loaded), "features": {k: str(v) for k, v in loaded.features.items()},
                  "dtypes": {name: str(loaded[0][name].dtype) for name in NAMES}, "differ": differ,
                  "again": len(loaded.filter(lambda row: row["seq_len"] > 0))}))
`;

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-tokenize-"));
});
afterAll(() => {
  rmSync(directory, { recursive: true, force: true });
});

function tokenize(input: string, output: string, threads: number): { rows: number; tokens: number } {
  const module = pathToFileURL(join(ROOT, "dist/dataset/tokenize.js")).href;
  const model = join(FIXTURES, "models/tiny-qwen3");
  const argv = ["--input-type=module", "-e", TOKENIZE, module, model, input, output, String(threads)];
  const child = spawnSync(process.execPath, argv, { encoding: "utf8" });
  if (child.status !== 0) throw new Error(child.stderr);
  return JSON.parse(child.stdout);
}

function python(args: string[]): string {
  const venv = join(ROOT, ".cache/venv/bin/python");
  const env = { ...process.env, HF_HUB_OFFLINE: "1", HF_HOME: join(directory, "hf") };
  const child = spawnSync(existsSync(venv) ? venv : "python3", args, { encoding: "utf8", env });
  if (child.status !== 0) {
    throw new Error(
      `needs Python with datasets (node scripts/setup.mjs --python): ${child.stderr ?? child.error}`,
    );
  }
  return child.stdout.trim().split("\n").at(-1)!;
}

test("Python's datasets opens what tokenize makes, equal to transformers in every row", () => {
  const reference = join(FIXTURES, "datasets/tokenised.jsonl");
  const output = join(directory, "out");
  expect(tokenize(reference, output, 2)).toMatchObject({ rows: 40, tokens: 8400 });
  const found = JSON.parse(python(["-c", LOAD, output, reference]));
  expect(found).toEqual({
    rows: 40,
    features: {
      input_ids: "List(Value('int32'))",
      loss_mask: "List(Value('int64'))",
      seq_len: "Value('int64')",
    },
    dtypes: { input_ids: "torch.int64", loss_mask: "torch.int64", seq_len: "torch.int64" },
    differ: [],
    again: 40,
  });
});

test("three threads make the same file as one, rows in the input's order", () => {
  const input = join(FIXTURES, "gsm8k-test.jsonl");
  const made = [1, 3].map((threads) => {
    const output = join(directory, `threads-${threads}`);
    expect(tokenize(input, output, threads).rows).toBe(1319);
    return readFileSync(join(output, "data-00000-of-00001.arrow"));
  });
  expect(made[0]!.equals(made[1]!)).toBe(true);
});
