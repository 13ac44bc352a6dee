import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { DTYPE_BYTES, type Dtype } from "../base/safetensors.ts";
import { flopsPerToken, readForwardCost } from "./forward-cost.ts";

const models = new URL("../../fixtures/models/", import.meta.url).pathname;
const scratch = mkdtempSync(join(tmpdir(), "forebay-cost-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

/** The FLOPs a token of blocks 0..`lastTap` of a model in fixtures/. */
function flops(model: string, lastTap: number, meanTokens: number): number {
  return flopsPerToken(readForwardCost(join(models, model), lastTap)!, meanTokens);
}

// hidden 64, 4 heads of 32, 2 key-value heads, MLP 160:
// q 64 x 128 + k, v 2 x 64 x 64 + o 128 x 64 + gate, up, down 3 x 64 x 160 = 55,296 parameters a block.
const QWEN3_BLOCK = 2 * 55_296;

it("a dense model costs two FLOPs a parameter of each block up to the tap, and attention by length", () => {
  expect(flops("random-qwen3", 0, 0)).toBe(QWEN3_BLOCK);
  // Scores and sums each: 2 FLOPs x 128 numbers x 50 tokens looked at = 12,800; both 25,600 a block.
  expect(flops("random-qwen3", 2, 100)).toBe(3 * (QWEN3_BLOCK + 25_600));
});

it("embedding, head and the blocks after the last tap cost nothing: they are not needed", () => {
  expect(flops("random-qwen3", 5, 0)).toBe(6 * QWEN3_BLOCK);
});

it("weights in several files count as in one", () => {
  // hidden 64, 6 heads of 16, 3 key-value heads, MLP 128.
  const block = 64 * 96 + 2 * 64 * 48 + 96 * 64 + 3 * 64 * 128;
  expect(flops("random-qwen3-sharded", 4, 0)).toBe(5 * 2 * block);
});

it("a hybrid's linear attention costs the same at any length, its full attention does not", () => {
  // Linear: convolution 256 x 4, a and b 2 x 4 x 64, qkv 256 x 64, z 128 x 64, out 64 x 128, MLP 3 x 64 x 96;
  // state 4 heads x 32 x 32. Full: q with its gate 256 x 64, k, v 2 x 64 x 64, o 64 x 128, the same MLP.
  const linear = 2 * (1_024 + 512 + 16_384 + 8_192 + 8_192 + 18_432) + 6 * 4_096;
  const full = 2 * (16_384 + 8_192 + 8_192 + 18_432);
  expect(flops("random-qwen3_5", 2, 0)).toBe(3 * linear);
  expect(flops("random-qwen3_5", 2, 1_000)).toBe(3 * linear);
  expect(flops("random-qwen3_5", 3, 100)).toBe(3 * linear + full + 25_600);
});

it("of a multimodal model only the text model's blocks count", () => {
  // hidden 64, state 6 heads x 32 x 16, convolution 224 x 4.
  const linear = 2 * (224 * 4 + 2 * 6 * 64 + 224 * 64 + 96 * 64 + 64 * 96 + 3 * 64 * 128) + 6 * 6 * 32 * 16;
  expect(flops("random-qwen3_5-vl", 0, 0)).toBe(linear);
});

it("a sliding window bounds what a token looks at", () => {
  // 4 heads of 16, a window of 16 tokens: in a sample of 100, 16 - 16 x 16 / 200 = 14.72 on average.
  const block = 2 * (64 * 64 + 2 * 64 * 32 + 64 * 64 + 3 * 64 * 160);
  expect(flops("random-mistral", 0, 100)).toBeCloseTo(block + 4 * 64 * 14.72);
  expect(flops("random-mistral", 0, 10)).toBeCloseTo(block + 4 * 64 * 5);
});

describe("routed experts", () => {
  const attention = {
    "self_attn.q_proj.weight": [32, 16],
    "self_attn.o_proj.weight": [16, 32],
  };
  const shared = { "mlp.gate.weight": [8, 16], "mlp.shared_experts.up_proj.weight": [20, 16] };
  const always = 2 * (2 * 16 * 32 + 8 * 16 + 20 * 16);

  it("count by the share of them that a token is sent to, whether they stand apart or in one tensor", () => {
    const apart = Object.fromEntries(
      Array.from({ length: 8 }, (_, e) => [`mlp.experts.${e}.up_proj.weight`, [10, 16]]),
    );
    const config = { num_experts: 8, num_experts_per_tok: 2 };
    const each = made("apart", config, { ...attention, ...shared, ...apart });
    const fused = made("fused", config, { ...attention, ...shared, "mlp.experts.up_proj": [8, 10, 16] });
    for (const dir of [each, fused]) expect(readForwardCost(dir, 0)?.fixed).toBe(always + 2 * 2 * 10 * 16);
  });

  it("of which config.json does not say how many a token meets are not guessed", () => {
    const tensors = { ...attention, "mlp.experts.up_proj": [8, 10, 16] };
    expect(readForwardCost(made("no-share", { num_experts: 8 }, tensors), 0)).toBeNull();
  });
});

describe("what cannot be counted truly is not told", () => {
  const block = { "self_attn.o_proj.weight": [16, 32], "mlp.up_proj.weight": [64, 16] };

  it.each<[string, Record<string, unknown>, Record<string, number[]>, Dtype?]>([
    ["packed weights", {}, block, "U8"],
    ["latent attention", { kv_lora_rank: 512 }, block],
    ["chunked attention", { layer_types: ["chunked_attention"] }, block],
    ["a mixer of another kind", {}, { "mamba.in_proj.weight": [16, 32] }],
    ["linear attention whose state has no size", {}, { "linear_attn.out_proj.weight": [16, 32] }],
    ["a block that is not there", {}, {}],
  ])("%s", (name, config, tensors, dtype = "BF16") => {
    expect(readForwardCost(made(name, config, tensors, dtype), 0)).toBeNull();
  });

  it("a window of which only the family's code knows in which blocks it is", () => {
    expect(readForwardCost(join(models, "random-gemma3"), 0)).toBeNull();
  });
});

/** A model directory of one block with tensors of these shapes, all zero. */
function made(
  name: string,
  config: Record<string, unknown>,
  shapes: Record<string, number[]>,
  dtype: Dtype = "BF16",
): string {
  const dir = mkdtempSync(join(scratch, `${name.replaceAll(" ", "-")}-`));
  writeFileSync(join(dir, "config.json"), JSON.stringify({ architectures: ["MadeForCausalLM"], ...config }));
  let end = 0;
  const header = Object.fromEntries(
    Object.entries(shapes).map(([tensor, shape]) => {
      const begin = end;
      end += shape.reduce((product, n) => product * n, DTYPE_BYTES[dtype]);
      return [`model.layers.0.${tensor}`, { dtype, shape, data_offsets: [begin, end] }];
    }),
  );
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  writeFileSync(join(dir, "model.safetensors"), Buffer.concat([length, json, Buffer.alloc(end)]));
  return dir;
}
