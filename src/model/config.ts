import { createHash } from "node:crypto";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { z } from "zod";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";

/** How rotary positions are stretched; `other` keeps the name so that a refusal can say it. */
export type RopeScaling =
  | { kind: "none" }
  | { kind: "linear"; factor: number }
  | {
      kind: "llama3";
      factor: number;
      lowFreqFactor: number;
      highFreqFactor: number;
      originalPositions: number;
    }
  | { kind: "other"; name: string };

/** What a plain pre-norm decoder (Llama, Qwen2, Qwen3) is made of. */
export interface DecoderConfig {
  family: "llama" | "qwen2" | "qwen3";
  heads: number;
  kvHeads: number;
  headDim: number;
  intermediate: number;
  ropeTheta: number;
  ropeScaling: RopeScaling;
  rmsNormEps: number;
  hiddenAct: string;
  qkvBias: boolean;
  outputBias: boolean;
  mlpBias: boolean;
  /** RMS norm of each head's query and key before the rotary. */
  qkNorm: boolean;
  /** Some block looks back only so many tokens. */
  slidingWindow: boolean;
}

/** What config.json says of any causal language model. */
export interface ModelConfig {
  /** `architectures[0]`: "Qwen3ForCausalLM". */
  architecture: string;
  modelType: string;
  /** Decoder blocks; taps are 0..blocks-1. */
  blocks: number;
  hidden: number;
  vocab: number;
  /** The longest sequence the model was made for, or null where config.json does not say. */
  positions: number | null;
  /** The embedding serves as the output head too. */
  tied: boolean;
  /** Name of the quantisation method, or null. */
  quantization: string | null;
  /** Set for the families whose every part we know; null for all others. */
  decoder: DecoderConfig | null;
}

const FAMILIES: Record<string, DecoderConfig["family"]> = {
  LlamaForCausalLM: "llama",
  Qwen2ForCausalLM: "qwen2",
  Qwen3ForCausalLM: "qwen3",
};

const count = z.number().int().positive();
const json = z.record(z.string(), z.unknown());
type Json = z.infer<typeof json>;

/** Reads `dir`/config.json. Throws (configuration) naming the key that is missing or wrong. */
export function readModelConfig(dir: string): ModelConfig {
  const path = join(dir, "config.json");
  return parseModelConfig(readJson(path), path);
}

/** `dir`/config.json as it is, a multimodal model's `text_config` laid over it. */
export function readTextConfig(dir: string): Json {
  return withText(readJson(join(dir, "config.json")));
}

/**
 * Understands both styles of config.json: `rope_parameters` and `dtype` as transformers 5 saves, `rope_theta`,
 * `rope_scaling` and `torch_dtype` as most models on the hub have it. A multimodal model's text model is read
 * from `text_config`. `subject` names the file in errors.
 */
export function parseModelConfig(config: Json, subject: string): ModelConfig {
  const keys = new Keys(withText(config), subject);
  const architecture = z.tuple([z.string()], z.unknown()).safeParse(config.architectures).data?.[0];
  if (architecture === undefined) throw keys.bad("architectures", "expected a list with the name of a class");
  const family = FAMILIES[architecture];
  return {
    architecture,
    modelType: keys.read(["model_type"], z.string(), ""),
    blocks: keys.read(["num_hidden_layers", "n_layer", "n_layers", "num_layers"], count),
    hidden: keys.read(["hidden_size", "n_embd", "d_model"], count),
    vocab: keys.read(["vocab_size"], count),
    positions: keys.read(["max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"], count, null),
    tied: keys.read(["tie_word_embeddings"], z.boolean(), false),
    quantization: quantization(config.quantization_config),
    decoder: family ? readDecoder(family, keys) : null,
  };
}

/**
 * sha256 (hex) of config.json with its keys sorted, without what a re-save changes and no computation reads.
 * Part of a run's identity.
 */
export function configSha256(dir: string): string {
  const { _name_or_path, transformers_version, ...rest } = readJson(join(dir, "config.json"));
  return createHash("sha256")
    .update(JSON.stringify(sortKeys(rest)))
    .digest("hex");
}

function withText(config: Json): Json {
  return { ...config, ...json.safeParse(config.text_config).data };
}

function readDecoder(family: DecoderConfig["family"], keys: Keys): DecoderConfig {
  const hidden = keys.read(["hidden_size"], count);
  const heads = keys.read(["num_attention_heads"], count);
  const attentionBias = keys.read(["attention_bias"], z.boolean(), false);
  const windowed = keys.read(["use_sliding_window"], z.boolean(), false);
  const layerTypes = keys.read(["layer_types"], z.array(z.string()), []);
  return {
    family,
    heads,
    kvHeads: keys.read(["num_key_value_heads"], count, heads),
    // Qwen3's own default is 128, whatever hidden and heads are (transformers, Qwen3Config).
    headDim: keys.read(["head_dim"], count, family === "qwen3" ? 128 : hidden / heads),
    intermediate: keys.read(["intermediate_size"], count),
    ...readRope(keys),
    rmsNormEps: keys.read(["rms_norm_eps"], z.number().nonnegative()),
    hiddenAct: keys.read(["hidden_act"], z.string()),
    qkvBias: family === "qwen2" || attentionBias,
    outputBias: family !== "qwen2" && attentionBias,
    mlpBias: family === "llama" && keys.read(["mlp_bias"], z.boolean(), false),
    qkNorm: family === "qwen3",
    slidingWindow: family !== "llama" && (windowed || layerTypes.some((type) => type !== "full_attention")),
  };
}

function readRope(keys: Keys): Pick<DecoderConfig, "ropeTheta" | "ropeScaling"> {
  const style5 = keys.read(["rope_parameters"], json, null);
  const rope = keys.inside(style5 ?? keys.read(["rope_scaling"], json, null) ?? {});
  // Llama 1 and 2 were saved before the key existed; their theta is 10000. A style-5 file always holds it.
  const ropeTheta = style5
    ? rope.read(["rope_theta"], z.number().positive())
    : keys.read(["rope_theta"], z.number().positive(), 10_000);
  return { ropeTheta, ropeScaling: readScaling(rope) };
}

function readScaling(rope: Keys): RopeScaling {
  const kind = rope.read(["rope_type", "type"], z.string(), "default");
  const positive = z.number().positive();
  const partial = rope.read(["partial_rotary_factor"], positive, 1);
  if (partial !== 1) return { kind: "other", name: `${kind} on ${partial} of each head` };
  switch (kind) {
    case "default":
      return { kind: "none" };
    case "linear":
      return { kind: "linear", factor: rope.read(["factor"], positive) };
    case "llama3":
      return {
        kind: "llama3",
        factor: rope.read(["factor"], positive),
        lowFreqFactor: rope.read(["low_freq_factor"], positive),
        highFreqFactor: rope.read(["high_freq_factor"], positive),
        originalPositions: rope.read(["original_max_position_embeddings"], count),
      };
    default:
      return { kind: "other", name: kind };
  }
}

/** One JSON object whose keys are read with their types checked, each failure naming the key. */
class Keys {
  readonly #values: Json;
  readonly #subject: string;

  constructor(values: Json, subject: string) {
    this.#values = values;
    this.#subject = subject;
  }

  inside(values: Json): Keys {
    return new Keys(values, this.#subject);
  }

  /** The value under the first of `names` that is there; null counts as absent. Without `fallback` it must be. */
  read<T, F = T>(names: string[], type: z.ZodType<T>, fallback?: F): T | F {
    for (const name of names) {
      const value = Object.hasOwn(this.#values, name) ? this.#values[name] : undefined;
      if (value === undefined || value === null) continue;
      const parsed = type.safeParse(value);
      if (!parsed.success) throw this.bad(name, parsed.error.issues[0]?.message ?? "it is of another type");
      return parsed.data;
    }
    if (fallback === undefined) throw this.bad(names[0]!, "expected it to be there");
    return fallback;
  }

  bad(name: string, problem: string): RunError {
    const found = JSON.stringify(this.#values[name]) ?? "nothing";
    return new RunError({
      op: "read model config",
      subject: this.#subject,
      message: `the key "${name}": ${problem}, found ${found.slice(0, 80)}`,
      hint: "config.json must be the one that was saved with the weights: fetch the model again",
      exit: EXIT.configuration,
    });
  }
}

function readJson(path: string): Json {
  try {
    return json.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch (cause) {
    const absent = errnoOf(cause) === "ENOENT" || errnoOf(cause) === "ENOTDIR";
    const isModelThere = existsSync(dirname(path));
    throw new RunError({
      op: "read model config",
      subject: isModelThere ? path : dirname(path),
      message: !isModelThere
        ? "no such directory"
        : absent
          ? "there is no such file"
          : "it is not a readable JSON object",
      hint: "--model names a Hugging Face model directory: config.json beside *.safetensors",
      exit: EXIT.configuration,
      cause: absent ? undefined : cause,
    });
  }
}

function quantization(value: unknown): string | null {
  const config = json.safeParse(value).data;
  if (!config) return null;
  return typeof config.quant_method === "string" ? config.quant_method : "unnamed";
}

function sortKeys(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sortKeys);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(
    Object.entries(value)
      .sort(([a], [b]) => (a < b ? -1 : 1))
      .map(([key, item]) => [key, sortKeys(item)]),
  );
}
