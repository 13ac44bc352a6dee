import { z } from "zod";
import type { Dtype } from "../base/safetensors.ts";
import { readTextConfig } from "./config.ts";
import { openWeights, type WeightTensor } from "./weights.ts";

/** What a forward up to the last tap costs a token, in FLOPs; a multiply-add is two. */
export interface ForwardCost {
  /** What does not depend on the sample's length. */
  fixed: number;
  /** A block's attention each: numbers read from a key and its value, over all heads. Window: how far back, in tokens. */
  attention: { width: number; window: number | null }[];
}

const count = z.number().int().positive();
const Text = z.object({
  model_type: z.string().nullish(),
  num_experts: count.nullish(),
  num_local_experts: count.nullish(),
  n_routed_experts: count.nullish(),
  num_experts_per_tok: count.nullish(),
  layer_types: z.array(z.string()).nullish(),
  sliding_window: count.nullish(),
  use_sliding_window: z.boolean().nullish(),
  linear_num_value_heads: count.nullish(),
  linear_key_head_dim: count.nullish(),
  linear_value_head_dim: count.nullish(),
  kv_lora_rank: count.nullish(),
});
type Text = z.infer<typeof Text>;

/** Of a decoder's blocks alone: vision towers and heads for multi-token prediction stand under other names. */
const BLOCK = /^(?:(?:model|language_model|text_model)\.)*layers\.(\d+)\.(.+)$/;
/** Of this each token meets only a few: `mlp.experts.17.up_proj.weight`, or all in one, `mlp.experts.gate_up_proj`. */
const ROUTED = /(?:^|\.)experts\./;
/** Numbers packed into integers cannot be counted by their shape. */
const COUNTABLE: ReadonlySet<Dtype> = new Set(["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"]);

/**
 * The cost of blocks 0..`lastTap` of the model in `dir`, from the shapes of its weights: two FLOPs for each parameter
 * of a matrix that a token meets (of routed experts only the share that it is sent to), and attention on top. Null
 * where that cannot be told truly: packed weights, latent or chunked attention, mixers that we do not know.
 * Source: Kaplan et al. 2020 (arXiv 2001.08361), table 1: C_forward = 2 N + 2 n_layer n_ctx d_attn, causal.
 */
export function readForwardCost(dir: string, lastTap: number): ForwardCost | null {
  const text = Text.safeParse(readTextConfig(dir));
  if (!text.success || text.data.kv_lora_rank) return null;
  const blocks = blocksOf(openWeights(dir).tensors.values(), lastTap);
  const cost: ForwardCost = { fixed: 0, attention: [] };
  for (const [block, tensors] of blocks.entries()) {
    const parameters = parametersMet(tensors, text.data);
    const mixer = mixerOf(block, tensors, text.data);
    if (parameters === null || mixer === null) return null;
    cost.fixed += 2 * parameters + mixer.fixed;
    if (mixer.attention) cost.attention.push(mixer.attention);
  }
  return cost;
}

/**
 * FLOPs a token where tokens stand in samples of `meanTokens`, each token counted with its sample's length (sum of
 * squares over sum). Causal: a token looks back over half of its sample on average; two FLOPs a number read.
 */
export function flopsPerToken(cost: ForwardCost, meanTokens: number): number {
  const lookedAt = (window: number | null) =>
    window === null || meanTokens <= window ? meanTokens / 2 : window - window ** 2 / (2 * meanTokens);
  return cost.attention.reduce((sum, { width, window }) => sum + 2 * width * lookedAt(window), cost.fixed);
}

/** What a token's attention adds for each token of its sample, as a share of the rest of its cost. */
export function attentionShare({ fixed, attention }: ForwardCost): number {
  const width = attention.reduce((sum, block) => sum + (block.window === null ? block.width : 0), 0);
  return fixed > 0 ? width / fixed : 0;
}

/** Tensors of blocks 0..lastTap, each under its name within its block. */
function blocksOf(tensors: Iterable<WeightTensor>, lastTap: number): Map<string, WeightTensor>[] {
  const blocks = Array.from({ length: lastTap + 1 }, () => new Map<string, WeightTensor>());
  for (const tensor of tensors) {
    const [, block, name] = BLOCK.exec(tensor.name) ?? [];
    if (name !== undefined) blocks[Number(block)]?.set(name, tensor);
  }
  return blocks;
}

function parametersMet(tensors: Map<string, WeightTensor>, text: Text): number | null {
  const experts = text.num_experts ?? text.num_local_experts ?? text.n_routed_experts;
  const routedShare = experts && text.num_experts_per_tok ? text.num_experts_per_tok / experts : null;
  let met = 0;
  for (const [name, { shape, dtype }] of tensors) {
    // Norms and biases: a number or two a token, nothing beside the matrices.
    if (shape.length < 2) continue;
    const share = ROUTED.test(name) ? routedShare : 1;
    if (share === null || !COUNTABLE.has(dtype)) return null;
    met += share * shape.reduce((product, n) => product * n, 1);
  }
  return met;
}

interface Mixer {
  fixed: number;
  attention: ForwardCost["attention"][number] | null;
}

/** How a block lets tokens see one another, by the weights that it has for that. */
function mixerOf(block: number, tensors: Map<string, WeightTensor>, text: Text): Mixer | null {
  // [hidden, heads * head size]: what attention gives out, and so a value's width; a key's is the same.
  const out = tensors.get("self_attn.o_proj.weight");
  if (out) {
    const window = windowOf(block, text);
    return window === undefined ? null : { fixed: 0, attention: { width: 2 * out.shape[1]!, window } };
  }
  const state = tensors.has("linear_attn.out_proj.weight") ? deltaRuleState(text) : null;
  return state === null ? null : { fixed: 6 * state, attention: null };
}

/** How far back a block's attention looks; null: to the sample's begin. Undefined where config.json leaves it open. */
function windowOf(block: number, text: Text): number | null | undefined {
  const { layer_types, sliding_window: window, use_sliding_window, model_type } = text;
  switch (layer_types?.[block]) {
    case "full_attention":
      return null;
    case "sliding_attention":
      return window ?? undefined;
    case undefined:
      break;
    default:
      return undefined;
  }
  if (!window || use_sliding_window === false) return null;
  // Older files of other families have a window of which only the code knows in which blocks it is.
  return model_type === "mistral" ? window : undefined;
}

/**
 * Numbers in the state of a gated delta rule (Qwen3-Next, 3.5, 3.6). A token reads it twice and adds to it once, two
 * FLOPs a number each. Source: Yang et al. 2024 (arXiv 2412.06464), equation 10.
 */
function deltaRuleState(text: Text): number | null {
  const { linear_num_value_heads, linear_key_head_dim, linear_value_head_dim } = text;
  if (!linear_num_value_heads || !linear_key_head_dim || !linear_value_head_dim) return null;
  return linear_num_value_heads * linear_key_head_dim * linear_value_head_dim;
}
