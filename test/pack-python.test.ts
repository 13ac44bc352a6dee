import { spawnSync } from "node:child_process";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { metadataBytesOf } from "../src/pack/metadata.ts";
import { batchCount, batchOf, makePlan } from "../src/plan/plan.ts";
import { encodePlan } from "../src/plan/plan-file.ts";
import { packKey } from "../src/store/keys.ts";
import { makePack, tapNumbers } from "./support/packs.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const GOLDEN = join(ROOT, "fixtures/packs");

/** Opens files with Python's own safetensors and prints what it finds in them, a JSON line each. */
const SCRIPT = `
import json, sys
import safetensors
for path in sys.argv[1:]:
    with open(path, "rb") as f:
        raw = f.read()
    with safetensors.safe_open(path, framework="np") as opened:
        metadata, names = opened.metadata(), sorted(opened.keys())
    tensors = {}
    for name, tensor in safetensors.deserialize(raw):
        tensors[name] = {"dtype": tensor["dtype"], "shape": tensor["shape"], "hex": bytes(tensor["data"]).hex()}
    assert names == sorted(tensors), (names, sorted(tensors))
    print(json.dumps({"metadata": metadata, "tensors": tensors}))
`;

interface Opened {
  metadata: Record<string, string>;
  tensors: Record<string, { dtype: string; shape: number[]; hex: string }>;
}

test("Python's safetensors opens the golden packs and finds what their JSON says", () => {
  const names = readdirSync(GOLDEN).filter((name) => name.endsWith(".safetensors"));
  expect(names.length).toBe(3);
  const found = openInPython(names.map((name) => join(GOLDEN, name)));
  for (const [i, name] of names.entries()) {
    const expected = JSON.parse(readFileSync(join(GOLDEN, name.replace(".safetensors", ".json")), "utf8"));
    const { metadata, tensors } = found[i]!;
    expect(metadata).toEqual(expected.metadata);
    let count = 0;
    for (const sample of expected.samples) {
      if (sample.skipped !== null) {
        const bytes = sample.end_byte - sample.start_byte;
        expect(tensors[`${sample.row}.skipped`]).toEqual({
          dtype: "U8",
          shape: [bytes],
          hex: "00".repeat(bytes),
        });
        count += 1;
        continue;
      }
      expect(tensors[`${sample.row}.token_ids`]).toEqual(i64(sample.token_ids));
      if (sample.loss_mask) expect(tensors[`${sample.row}.loss_mask`]).toEqual(i64(sample.loss_mask));
      expect(tensors[`${sample.row}.hidden_states`]).toEqual({
        dtype: "BF16",
        shape: [sample.tokens, expected.taps, expected.hidden],
        hex: hexOf(Uint16Array.from(sample.hidden_states_bits)),
      });
      count += sample.loss_mask ? 3 : 2;
    }
    expect(Object.keys(tensors).length).toBe(count);
  }
});

test("Python's safetensors opens a plan file, and a pack whose every sample was skipped", () => {
  const directory = mkdtempSync(join(tmpdir(), "forebay-python-"));
  try {
    const shape = { taps: 2, hidden: 8, hasLossMask: true, metadataBytes: metadataBytesOf(tapNumbers(2)) };
    const plan = makePlan(
      { lengths: Uint32Array.of(3, 0, 9, 4), firstRow: 2 },
      {
        shape,
        packBytesMax: 2_000,
        order: "shuffled",
        seed: 1,
        maxTokens: null,
        long: "skip",
        positions: null,
      },
    );
    const none = { ...plan, skippedRows: new Uint32Array(0), skippedReasons: new Uint8Array(0) };
    const skipped = makePack({ index: 0, samples: [{ row: 7, tokens: 5 }] }, shape, new Map([[7, "oom"]]));
    const files = {
      plan: encodePlan(plan, "0".repeat(64)),
      none: encodePlan(none, "0".repeat(64)),
      skipped: skipped.bytes,
    };
    const paths = Object.entries(files).map(([name, bytes]) => {
      writeFileSync(join(directory, name), bytes);
      return join(directory, name);
    });
    const [planFound, noneFound, skippedFound] = openInPython(paths);
    expect(planFound!.tensors.rows).toEqual({ dtype: "U32", shape: [3], hex: hexOf(plan.rows) });
    expect(planFound!.tensors.skipped_rows).toEqual({
      dtype: "U32",
      shape: [1],
      hex: hexOf(plan.skippedRows),
    });
    expect(noneFound!.tensors.skipped_rows).toEqual({ dtype: "U32", shape: [0], hex: "" });
    expect(Object.keys(skippedFound!.tensors)).toEqual(["7.skipped"]);
  } finally {
    rmSync(directory, { recursive: true });
  }
});

test("the reader that docs/format.md prints finds and decodes every sample of a run from its plan alone", () => {
  const snippet = /```python\n([\s\S]*?)```/.exec(readFileSync(join(ROOT, "docs/format.md"), "utf8"))![1]!;
  const main = `
out = []
plan = open(sys.argv[1] + "/plan", "rb").read()
for row in json.loads(sys.argv[2]):
    key, start, end, tokens = locate(plan, row)
    with open(sys.argv[1] + "/" + key, "rb") as f:
        f.seek(start)
        found = decode(f.read(end - start), tokens, int(sys.argv[3]))
    out.append(found and [list(found[0]), found[1] and list(found[1]), found[2].hex()])
print(json.dumps(out))
`;
  for (const hasLossMask of [true, false]) {
    const directory = mkdtempSync(join(tmpdir(), "forebay-format-"));
    try {
      const shape = { taps: 3, hidden: 12, hasLossMask, metadataBytes: metadataBytesOf(tapNumbers(3)) };
      const plan = makePlan(
        { lengths: Uint32Array.from({ length: 40 }, (_, i) => (i * 37) % 120), firstRow: 95 },
        {
          shape,
          packBytesMax: 30_000,
          order: "shuffled",
          seed: 9,
          maxTokens: 100,
          long: "skip",
          positions: null,
        },
      );
      writeFileSync(join(directory, "plan"), encodePlan(plan, "0".repeat(64)));
      const expected = new Map<number, unknown>();
      for (let b = 0; b < batchCount(plan); b += 1) {
        const batch = batchOf(plan, b);
        const skipped = batch.samples.slice(1, 2).map(({ row }) => [row, "oom"] as const);
        const { bytes, contents, states } = makePack(batch, shape, new Map(skipped));
        mkdirSync(dirname(join(directory, packKey(b))), { recursive: true });
        writeFileSync(join(directory, packKey(b)), bytes);
        for (const [i, { row }] of batch.samples.entries()) {
          const outcome = contents.outcomes[i]!;
          const { ids, lossMask } = outcome.kind === "done" ? outcome : { ids: null, lossMask: null };
          expected.set(row, ids && [[...ids], lossMask && [...lossMask], hexOf(states.get(row)!)]);
        }
      }
      const rows = [...expected.keys()];
      const found = python(["-c", snippet + main, directory, JSON.stringify(rows), hasLossMask ? "1" : "0"]);
      expect(JSON.parse(found)).toEqual([...expected.values()]);
    } finally {
      rmSync(directory, { recursive: true });
    }
  }
});

function openInPython(paths: string[]): Opened[] {
  return python(["-c", SCRIPT, ...paths])
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));
}

function python(args: string[]): string {
  const installed = [".venv/bin/python", ".cache/venv/bin/python"].map((path) => join(ROOT, path));
  const child = spawnSync(installed.find(existsSync) ?? "python3", args, {
    encoding: "utf8",
    maxBuffer: 2 ** 26,
  });
  if (child.error) {
    throw new Error("needs Python 3: install it, then node scripts/setup.mjs --python", {
      cause: child.error,
    });
  }
  if (/No module named/.test(child.stderr)) {
    throw new Error(
      `needs Python's safetensors and numpy (node scripts/setup.mjs --python): ${child.stderr}`,
    );
  }
  expect(child.stderr).toBe("");
  return child.stdout;
}

function i64(values: number[]): Opened["tensors"][string] {
  return { dtype: "I64", shape: [values.length], hex: hexOf(BigInt64Array.from(values, BigInt)) };
}

function hexOf(values: Uint16Array | Uint32Array | BigInt64Array): string {
  return Buffer.from(values.buffer, values.byteOffset, values.byteLength).toString("hex");
}
