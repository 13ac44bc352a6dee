/** A random Llama of SmolLM2-135M's shape: what the engine bench runs, made in a second and the same each time. */
import { closeSync, existsSync, mkdirSync, openSync, renameSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { buildHeader } from "../../dist/base/safetensors.js";

export const SHAPE = {
  blocks: 30,
  hidden: 576,
  heads: 9,
  kvHeads: 3,
  headDim: 64,
  intermediate: 1_536,
  vocab: 49_152,
};

const CONFIG = {
  architectures: ["LlamaForCausalLM"],
  model_type: "llama",
  num_hidden_layers: SHAPE.blocks,
  hidden_size: SHAPE.hidden,
  num_attention_heads: SHAPE.heads,
  num_key_value_heads: SHAPE.kvHeads,
  head_dim: SHAPE.headDim,
  intermediate_size: SHAPE.intermediate,
  vocab_size: SHAPE.vocab,
  max_position_embeddings: 8_192,
  rms_norm_eps: 1e-5,
  rope_theta: 100_000,
  hidden_act: "silu",
  tie_word_embeddings: true,
  torch_dtype: "bfloat16",
};

/** The standard deviation SmolLM2 was initialised with: 1 / sqrt(hidden). */
const DEVIATION = 0.0417;
const BF16_ONE = 0x3f80;

/** Multiplications and additions that one token of a sequence of `tokens` needs in all blocks; causal attention. */
export function flopsPerToken(tokens) {
  const { blocks, hidden, heads, kvHeads, headDim, intermediate } = SHAPE;
  const weights = hidden * headDim * (2 * heads + 2 * kvHeads) + 3 * hidden * intermediate;
  const attention = heads * headDim * tokens;
  return blocks * 2 * (weights + attention);
}

/** Makes the model in `dir` unless it is there. */
export function makeRandomLlama(dir) {
  const file = join(dir, "model.safetensors");
  if (existsSync(file)) return;
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, "config.json"), JSON.stringify(CONFIG, null, 2));
  const tensors = tensorShapes().map(([name, shape]) => ({ name, shape, dtype: "BF16" }));
  const fd = openSync(`${file}.tmp`, "w");
  writeSync(fd, buildHeader(tensors, { format: "pt" }));
  const pool = normalPool();
  let at = 0;
  for (const { shape } of tensors) {
    if (shape.length === 1) {
      writeSync(fd, new Uint8Array(new Uint16Array(shape[0]).fill(BF16_ONE).buffer));
      continue;
    }
    // Rows from a pool of a prime length: no two tensors are alike, and 135M normal deviates would take long.
    for (let left = shape[0] * shape[1]; left > 0; ) {
      const values = Math.min(left, pool.length - at);
      writeSync(fd, new Uint8Array(pool.buffer, at * 2, values * 2));
      at = (at + values) % pool.length;
      left -= values;
    }
  }
  closeSync(fd);
  renameSync(`${file}.tmp`, file);
}

function tensorShapes() {
  const { blocks, hidden, heads, kvHeads, headDim, intermediate, vocab } = SHAPE;
  const block = (k) =>
    [
      ["self_attn.q_proj", [heads * headDim, hidden]],
      ["self_attn.k_proj", [kvHeads * headDim, hidden]],
      ["self_attn.v_proj", [kvHeads * headDim, hidden]],
      ["self_attn.o_proj", [hidden, heads * headDim]],
      ["mlp.gate_proj", [intermediate, hidden]],
      ["mlp.up_proj", [intermediate, hidden]],
      ["mlp.down_proj", [hidden, intermediate]],
      ["input_layernorm", [hidden]],
      ["post_attention_layernorm", [hidden]],
    ].map(([name, shape]) => [`model.layers.${k}.${name}.weight`, shape]);
  return [
    ["model.embed_tokens.weight", [vocab, hidden]],
    ...Array.from({ length: blocks }, (_, k) => block(k)).flat(),
    ["model.norm.weight", [hidden]],
  ];
}

/** Normal deviates as bf16 (cut, not rounded). */
function normalPool() {
  const POOL_VALUES = 1_048_573;
  let state = 1;
  const uniform = () => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return (state + 1) / 2 ** 32;
  };
  const normal = () => DEVIATION * Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
  const floats = Float32Array.from({ length: POOL_VALUES }, normal);
  return Uint16Array.from(new Uint32Array(floats.buffer), (bits) => bits >>> 16);
}
