import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { EXIT } from "../../base/errors.ts";
import { type ModelConfig, readModelConfig } from "../../model/config.ts";
import { openWeights } from "../../model/weights.ts";
import { batchIndices } from "./batch.ts";
import { buildDecoderGraph } from "./decoder.ts";
import { ropeFrequencies, ropeTables } from "./rope.ts";
import { needSupported } from "./support.ts";

const models = new URL("../../../fixtures/models/", import.meta.url).pathname;
const scratch = mkdtempSync(join(tmpdir(), "forebay-decoder-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

function build(dir: string, options: { taps?: number[]; logits?: boolean; after?: number } = {}) {
  return buildDecoderGraph({
    model: needSupported(readModelConfig(dir), dir),
    weights: openWeights(dir),
    after: options.after ?? null,
    taps: options.taps ?? [1],
    cache: false,
    logits: options.logits ?? false,
    rounded: [],
  });
}

describe("a graph", () => {
  it("holds nothing behind its last tap", () => {
    const { model, endBlock } = build(join(models, "random-qwen3"), { taps: [0, 2] });
    const text = Buffer.from(model).toString("latin1");
    expect(endBlock).toBe(3);
    expect(text).toContain("model.layers.2.mlp.down_proj.weight");
    expect(text).not.toContain("model.layers.3.");
    expect(text).not.toContain("lm_head");
  });

  it("begins behind the block whose states are put in", () => {
    const graph = build(join(models, "random-qwen3"), { taps: [], after: 4, logits: true });
    const text = Buffer.from(graph.model).toString("latin1");
    expect([graph.startBlock, graph.endBlock]).toEqual([5, 6]);
    expect(text).not.toContain("model.layers.4.");
    expect(text).not.toContain("embed_tokens");
  });

  it("copies no weight: it is thousands of times smaller than a model could be", () => {
    expect(build(join(models, "tiny-qwen3")).model.length).toBeLessThan(20_000);
  });

  it("names shards by where their symlinks lead, below the deepest common folder", () => {
    const dir = join(scratch, "snapshot");
    const blobs = join(scratch, "blobs");
    cpSync(join(models, "random-qwen3-sharded"), dir, { recursive: true });
    mkdirSync(join(blobs, "other"), { recursive: true });
    const [first, second] = [1, 2].map((n) => `model-0000${n}-of-00002.safetensors`);
    renameSync(join(dir, first!), join(blobs, "aaa"));
    renameSync(join(dir, second!), join(blobs, "other", "bbb"));
    symlinkSync("../blobs/aaa", join(dir, first!));
    symlinkSync("../blobs/other/bbb", join(dir, second!));
    const { folder, model } = build(dir, { taps: [4] });
    const text = Buffer.from(model).toString("latin1");
    expect(folder).toBe(blobs);
    expect(text).toContain("aaa");
    expect(text).toContain("other/bbb");
  });

  it("a weight of a dtype it has no cast for is refused by name", () => {
    const dir = join(scratch, "integers");
    cpSync(join(models, "random-llama"), dir, { recursive: true });
    const file = join(dir, "model.safetensors");
    const bytes = readFileSync(file);
    const header = bytes.subarray(0, 8 + Number(bytes.readBigUInt64LE(0)));
    const text = header.toString("latin1").replaceAll('"BF16"', '"I16" ');
    bytes.write(text, 0, "latin1");
    writeFileSync(file, bytes);
    expect(() => build(dir)).toThrow(/tensor "model\..*": expected F32, BF16 or F16, found I16/);
  });
});

describe("what the engine cannot run is refused by name, with the engine that can", () => {
  it.each([
    ["random-mistral", "MistralForCausalLM"],
    ["random-gemma3", "Gemma3ForCausalLM"],
    ["random-qwen3_5", "Qwen3_5ForCausalLM"],
    ["random-qwen3_5-vl", "Qwen3_5ForConditionalGeneration"],
  ])("%s", (model, architecture) => {
    const dir = join(models, model);
    expectRefusal(readModelConfig(dir), `the architecture ${architecture}`);
  });

  const good = readModelConfig(join(models, "random-qwen3"));
  const decoder = good.decoder!;
  it.each([
    ['the rope scaling "yarn"', { decoder: { ...decoder, ropeScaling: { kind: "other", name: "yarn" } } }],
    ["sliding-window attention", { decoder: { ...decoder, slidingWindow: true } }],
    ["the activation gelu", { decoder: { ...decoder, hiddenAct: "gelu" } }],
    ["heads of 12", { decoder: { ...decoder, headDim: 12 } }],
    ["4 heads over 3 key-value heads", { decoder: { ...decoder, kvHeads: 3 } }],
    ["weights quantised by fp8", { quantization: "fp8" }],
  ] as [string, Partial<ModelConfig>][])("%s", (what, change) => {
    expectRefusal({ ...good, ...change }, what);
  });
});

describe("rope", () => {
  const plain = { headDim: 8, theta: 10_000, scaling: { kind: "none" } as const };

  it("plain frequencies fall from 1 by the theta, and the tables hold their angles", () => {
    expect(Array.from(ropeFrequencies(plain))).toEqual(
      [1, 0.1, 0.01, 0.001].map((x) => expect.closeTo(x, 8)),
    );
    const tables = ropeTables({ ...plain, positions: 3 });
    expect(tables.cos[2 * 4 + 1]).toBeCloseTo(Math.cos(0.2), 7);
    expect(tables.sin[2 * 4]).toBeCloseTo(Math.sin(2), 7);
  });

  it("linear scaling divides every frequency", () => {
    const linear = ropeFrequencies({ ...plain, scaling: { kind: "linear", factor: 4 } });
    expect(Array.from(linear)).toEqual([0.25, 0.025, 0.0025, 0.00025].map((x) => expect.closeTo(x, 8)));
  });

  it("llama3 scaling keeps the fast, stretches the slow, blends between", () => {
    const scaling = {
      kind: "llama3",
      factor: 8,
      lowFreqFactor: 1,
      highFreqFactor: 4,
      originalPositions: 128,
    } as const;
    const stretched = ropeFrequencies({ ...plain, scaling });
    // Wavelengths 6.3, 62.8, 628, 6283: below 128/4, between, above 128/1, above.
    const smooth = (128 / (2 * Math.PI * 10) - 1) / 3;
    expect(Array.from(stretched)).toEqual(
      [1, ((1 - smooth) * 0.1) / 8 + smooth * 0.1, 0.01 / 8, 0.001 / 8].map((x) => expect.closeTo(x, 7)),
    );
  });
});

it("packed rows and padded slots name each other, and pads name the row they were told", () => {
  const batch = batchIndices([[5, 6], [7], [8, 9, 10]], 3);
  expect(Array.from(batch.ids)).toEqual([5, 6, 7, 8, 9, 10]);
  expect(Array.from(batch.gather)).toEqual([0, 1, 3, 2, 3, 3, 3, 4, 5]);
  expect(Array.from(batch.scatter)).toEqual([0, 1, 3, 6, 7, 8]);
  expect(Array.from(batch.scatter, (slot) => batch.gather[slot])).toEqual([0, 1, 2, 3, 4, 5]);
});

function expectRefusal(model: ModelConfig, what: string): void {
  const attempt = () => needSupported(model, "DIR");
  expect(attempt).toThrow(`found ${what}`);
  expect(attempt).toThrow(
    expect.objectContaining({
      exit: EXIT.configuration,
      subject: "DIR",
      hint: expect.stringContaining("--engine transformers"),
    }),
  );
}
