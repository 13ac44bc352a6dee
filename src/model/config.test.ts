import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, describe, expect, it } from "vitest";
import { EXIT } from "../base/errors.ts";
import { configSha256, parseModelConfig, readModelConfig } from "./config.ts";

const models = new URL("../../fixtures/models/", import.meta.url).pathname;
const scratch = mkdtempSync(join(tmpdir(), "forebay-config-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

function readJson(model: string): Record<string, unknown> {
  return JSON.parse(readFileSync(join(models, model, "config.json"), "utf8"));
}

describe("both styles of config.json", () => {
  it("style 5 keeps its theta in rope_parameters", () => {
    expect(readModelConfig(join(models, "random-qwen3"))).toMatchObject({
      architecture: "Qwen3ForCausalLM",
      blocks: 6,
      hidden: 64,
      vocab: 384,
      positions: 512,
      tied: false,
      decoder: { family: "qwen3", heads: 4, kvHeads: 2, headDim: 32, ropeTheta: 1_000_000, qkNorm: true },
    });
  });

  it("style 4 keeps it beside rope_scaling", () => {
    expect(readModelConfig(join(models, "random-llama-rope3")).decoder).toMatchObject({
      ropeTheta: 500_000,
      ropeScaling: {
        kind: "llama3",
        factor: 8,
        lowFreqFactor: 1,
        highFreqFactor: 4,
        originalPositions: 128,
      },
      kvHeads: 1,
      headDim: 32,
    });
  });

  it("a multimodal model's facts are its text model's", () => {
    expect(readModelConfig(join(models, "random-qwen3_5-vl"))).toMatchObject({
      architecture: "Qwen3_5ForConditionalGeneration",
      blocks: 4,
      hidden: 64,
      vocab: 384,
      decoder: null,
    });
  });

  it("an architecture nobody knows still has blocks, hidden, vocab and positions", () => {
    const config = { architectures: ["SomeForCausalLM"], n_layer: 3, n_embd: 8, vocab_size: 10, n_ctx: 64 };
    expect(parseModelConfig(config, "config.json")).toMatchObject({
      blocks: 3,
      hidden: 8,
      positions: 64,
      decoder: null,
    });
  });

  it("Qwen2 has biases on q, k and v only, and its head dimension follows from the heads", () => {
    const { decoder } = readModelConfig(join(models, "random-qwen2"));
    expect(decoder).toMatchObject({ qkvBias: true, outputBias: false, mlpBias: false, headDim: 16 });
  });
});

describe("a config that lacks or breaks a key names it", () => {
  it.each([
    ["random-llama", "num_hidden_layers", undefined],
    ["random-llama", "num_attention_heads", undefined],
    ["random-llama", "rms_norm_eps", undefined],
    ["random-llama", "hidden_size", "64"],
    ["random-llama", "vocab_size", -1],
    ["random-llama", "architectures", undefined],
    ["random-qwen3", "rope_parameters", { rope_type: "default" }],
    ["random-llama-rope3", "rope_scaling", { rope_type: "llama3", factor: 8 }],
  ])("%s without a good %s", (model, key, value) => {
    const inside = { rope_parameters: "rope_theta", rope_scaling: "low_freq_factor" }[key] ?? key;
    const attempt = () => parseModelConfig({ ...readJson(model), [key]: value }, "M/config.json");
    expect(attempt).toThrow(`the key "${inside}"`);
    expect(attempt).toThrow(expect.objectContaining({ exit: EXIT.configuration, subject: "M/config.json" }));
  });

  it("a directory without config.json, and one that is not JSON", () => {
    expect(() => readModelConfig(scratch)).toThrow("there is no such file");
    writeFileSync(join(scratch, "config.json"), "{");
    expect(() => readModelConfig(scratch)).toThrow("not a readable JSON object");
  });
});

it("the config's sha256 ignores the order of keys and who saved it, and nothing else", () => {
  const { transformers_version, ...config } = readJson("random-llama");
  const save = (value: object) => {
    writeFileSync(join(scratch, "config.json"), JSON.stringify(value, null, 1));
    return configSha256(scratch);
  };
  const sha256 = configSha256(join(models, "random-llama"));
  expect(transformers_version).toBeDefined();
  expect(save(Object.fromEntries(Object.entries(config).reverse()))).toBe(sha256);
  expect(save({ ...config, rms_norm_eps: 1e-5 })).not.toBe(sha256);
});
