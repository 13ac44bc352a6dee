import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import {
  type GoldenSequence,
  MODELS,
  RELATIVE_ERROR_MAX,
  readGolden,
  worstDistance,
} from "./support/golden.ts";
import { Machine } from "./support/program.ts";
import { readPacks } from "./support/read-packs.ts";

/**
 * The six golden sequences of every model that the onnx engine runs, through the built program into packs, all blocks
 * tapped: bf16 rounding apart, each token of each block as Hugging Face transformers computes it.
 */

const MODEL_NAMES = [
  ...[
    "tiny-qwen3",
    "random-llama",
    "random-llama-rope3",
    "random-llama-tied",
    "random-qwen2",
    "random-qwen3",
  ],
  "random-qwen3-sharded",
];

let machine: Machine;
beforeAll(() => {
  machine = new Machine();
});
afterAll(() => machine?.remove());

describe.each(MODEL_NAMES)("%s", (name) => {
  const golden = readGolden(name);
  const blocks = golden[0]!.blocks.length;

  test("every block of every sequence is the golden one", async () => {
    await extract({ name, run: "alone", rows: golden, flags: ["--pack-bytes", "1KiB"] });
  });

  test("also between other rows, in batches of many lengths, by two engines", async () => {
    const rows = [...golden, ...others(golden, 60)];
    shuffle(rows, mulberry32(7));
    await extract({ name, run: "mixed", rows, flags: ["--engines", "2", "--pack-bytes", "1MiB"] });
  });

  test("also in chunks of 64 tokens", async () => {
    const rows = [...golden, ...others(golden, 10)];
    await extract({ name, run: "chunks", rows, flags: ["--forward-tokens", "64"] });
  });

  /** Runs the rows and holds each golden one among them against its pack. */
  async function extract(options: {
    name: string;
    run: string;
    rows: Row[];
    flags: string[];
  }): Promise<void> {
    const { run, rows, flags } = options;
    const dataset = machine.path(`${name}-${run}.jsonl`);
    writeFileSync(dataset, rows.map(({ ids }) => `${JSON.stringify({ input_ids: ids })}\n`).join(""));
    const taps = Array.from({ length: blocks }, (_, block) => block);
    const ended = await machine.run([
      ...["run", `file:${machine.path("store")}/${name}-${run}`, "--model", join(MODELS, name)],
      ...["--dataset", dataset, "--taps", taps.join(","), "--disk-floor", "1MiB", "--port", "0"],
      ...["--no-gate", "--progress", "quiet", ...flags],
    ]);
    expect(ended.code, ended.stderr).toBe(0);
    const packs = readPacks(machine.path("store", `${name}-${run}`, "packs"));
    expect(packs.size).toBe(rows.length);
    rows.forEach(({ ids }, row) => {
      expect(packs.get(row)!.ids, `token ids of row ${row}`).toEqual(ids);
    });
    for (const [k, sequence] of golden.entries()) {
      const { states } = packs.get(rows.indexOf(sequence))!;
      expect(states.length).toBe(sequence.ids.length * taps.length * sequence.hiddenSize);
      const distance = worstDistance(states, taps, sequence);
      expect(distance, `s${k} of ${sequence.ids.length} tokens`).toBeLessThan(RELATIVE_ERROR_MAX);
    }
  }
});

interface Row {
  ids: number[];
}

/** Rows of 1 to 200 tokens that the model has, of chance. */
function others(golden: readonly GoldenSequence[], count: number): Row[] {
  const random = mulberry32(count);
  const vocabulary = [...new Set(golden.flatMap(({ ids }) => ids))];
  return Array.from({ length: count }, () => ({
    ids: Array.from(
      { length: 1 + Math.floor(random() * 200) },
      () => vocabulary[Math.floor(random() * vocabulary.length)]!,
    ),
  }));
}

function shuffle<T>(items: T[], random: () => number): void {
  for (let i = items.length - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [items[i], items[j]] = [items[j]!, items[i]!];
  }
}
