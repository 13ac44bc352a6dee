import { realpathSync } from "node:fs";
import { dirname, relative } from "node:path";
import { EXIT, RunError } from "../../base/errors.ts";
import type { Dtype } from "../../base/safetensors.ts";
import { type ModelWeights, needTensor } from "../../model/weights.ts";
import { GraphBuilder, ONNX_TYPE, type OnnxType } from "./graph.ts";
import type { SupportedModel } from "./support.ts";

/** What a decoder graph takes in, computes and gives out. */
export interface DecoderGraphOptions {
  model: SupportedModel;
  weights: ModelWeights;
  /**
   * null: from token ids. Block k: from states put in place of block k's output (the gate's injection).
   */
  after: number | null;
  /** Blocks whose outputs leave, ascending; may be empty where `logits` is asked. */
  taps: readonly number[];
  /** Keys and values of earlier chunks come in and go on (one sequence at a time). */
  cache: boolean;
  /** Go on to the end, and give the logits of the rows named by `logit_rows`. */
  logits: boolean;
  /** Blocks whose output is rounded to bf16 in place: what storing it costs. */
  rounded: readonly number[];
}

/**
 * A graph, with T packed tokens of B sequences padded to S around the attention.
 *
 * Inputs: `ids` [T] i32, or `states` [T, hidden] u16 (bf16 bits); `gather` [B, S] i32, the packed row in each
 * padded slot; `scatter` [T] i32, the slot (b * S + s) of each packed row; `cos`, `sin` [P, headDim / 2] f32;
 * `last_position` [B] i32; `positions` [1] i32; with a cache `past_key.<k>`, `past_value.<k>`
 * [1, kvHeads, past, headDim] f32; with logits `logit_rows` [R] i32.
 * Outputs: `states_out` [T, taps, hidden] u16 (bf16 bits) and `mean`, `sumsq`, `min`, `max` [T, taps] f32 over
 * hidden; with a cache `present_key.<k>`, `present_value.<k>`; with logits `logits` [R, vocab] f32.
 */
export interface DecoderGraph {
  model: Uint8Array;
  /** External tensors are named relative to this folder. */
  folder: string;
  /** Blocks that the graph holds, [startBlock, endBlock). */
  startBlock: number;
  endBlock: number;
}

/** Builds the graph. Throws (configuration) where a tensor is missing, of another shape, or of a dtype we lack. */
export function buildDecoderGraph(options: DecoderGraphOptions): DecoderGraph {
  const { model, taps, logits } = options;
  const startBlock = options.after === null ? 0 : options.after + 1;
  const endBlock = logits ? model.blocks : (taps.at(-1) ?? -1) + 1;
  const g = new GraphBuilder();
  const files = new WeightFiles(options.weights);
  const weight = (name: string, shape: number[]) => files.float32(g, name, shape);

  // An input that no node reads would have to be fed all the same.
  const attention = startBlock < endBlock ? inputAttention(g, model) : null;
  let x = options.after === null ? embed(g, files, model) : injectedStates(g, model);
  const tapped: string[] = [];
  for (let k = startBlock; k < endBlock; k += 1) {
    x = addBlock(g, { model, weight, attention: attention!, block: k, cache: options.cache }, x);
    if (options.rounded.includes(k)) x = castTo(g, castTo(g, x, "bfloat16"), "float32");
    if (taps.includes(k)) tapped.push(x);
  }
  if (tapped.length > 0) outputTaps(g, model, tapped);
  if (logits) outputLogits(g, files, model, x);
  return { model: g.build(), folder: files.folder, startBlock, endBlock };
}

interface AttentionInputs {
  gather: string;
  scatter: string;
  cos: string;
  sin: string;
  lastPosition: string;
  positions: string;
}

function inputAttention(g: GraphBuilder, { decoder }: SupportedModel): AttentionInputs {
  return {
    gather: g.input("gather", "int32", ["B", "S"]),
    scatter: g.input("scatter", "int32", ["T"]),
    cos: g.input("cos", "float32", ["P", decoder.headDim / 2]),
    sin: g.input("sin", "float32", ["P", decoder.headDim / 2]),
    lastPosition: g.input("last_position", "int32", ["B"]),
    positions: g.input("positions", "int32", [1]),
  };
}

interface BlockParts {
  model: SupportedModel;
  weight: (name: string, shape: number[]) => string;
  attention: AttentionInputs;
  block: number;
  cache: boolean;
}

/** x + attention(norm(x)), then that + mlp(norm(that)); all [T, hidden]. */
function addBlock(g: GraphBuilder, parts: BlockParts, x: string): string {
  const { model, weight } = parts;
  const { intermediate, rmsNormEps, mlpBias } = model.decoder;
  const layer = `model.layers.${parts.block}`;
  const norm = (value: string, name: string) =>
    rmsNorm(g, value, weight(`${layer}.${name}.weight`, [model.hidden]), rmsNormEps);
  const linear = (value: string, name: string, out: number, into: number) =>
    addLinear(g, parts, value, { name: `${layer}.mlp.${name}`, out, into, bias: mlpBias });

  const attended = g.node("Add", [x, addAttention(g, parts, norm(x, "input_layernorm"))]);
  const normed = norm(attended, "post_attention_layernorm");
  const gate = linear(normed, "gate_proj", intermediate, model.hidden);
  const up = linear(normed, "up_proj", intermediate, model.hidden);
  // QuickGelu is x * sigmoid(alpha * x): with alpha 1, SiLU.
  const silu = g.node("QuickGelu", [gate], { domain: "com.microsoft", attributes: { alpha: { float: 1 } } });
  const down = linear(g.node("Mul", [silu, up]), "down_proj", model.hidden, intermediate);
  return g.node("Add", [attended, down]);
}

function addAttention(g: GraphBuilder, parts: BlockParts, x: string): string {
  const { model, weight, attention, block } = parts;
  const { heads, kvHeads, headDim, qkvBias, outputBias, qkNorm, rmsNormEps } = model.decoder;
  const layer = `model.layers.${block}.self_attn`;
  const project = (name: string, rows: number) =>
    addLinear(g, parts, x, { name: `${layer}.${name}`, out: rows, into: model.hidden, bias: qkvBias });
  const headNorm = (value: string, name: string, rows: number) => {
    if (!qkNorm) return value;
    const split = g.node("Reshape", [value, g.ints([-1, rows / headDim, headDim])]);
    const normed = rmsNorm(g, split, weight(`${layer}.${name}.weight`, [headDim]), rmsNormEps);
    return g.node("Reshape", [normed, g.ints([-1, rows])]);
  };
  const padded = (value: string) => g.node("Gather", [value, attention.gather], { attributes: { axis: 0 } });

  const q = padded(headNorm(project("q_proj", heads * headDim), "q_norm", heads * headDim));
  const k = padded(headNorm(project("k_proj", kvHeads * headDim), "k_norm", kvHeads * headDim));
  const v = padded(project("v_proj", kvHeads * headDim));
  const past = parts.cache ? inputPast(g, model, block) : ["", ""];
  const [out, presentKey, presentValue] = g.nodes(
    "GroupQueryAttention",
    [q, k, v, ...past, attention.lastPosition, attention.positions, attention.cos, attention.sin],
    {
      domain: "com.microsoft",
      attributes: { num_heads: heads, kv_num_heads: kvHeads, do_rotary: 1 },
      outputs: 3,
    },
  );
  if (parts.cache) outputPresent(g, model, block, presentKey!, presentValue!);
  const flat = g.node("Reshape", [out!, g.ints([-1, heads * headDim])]);
  const packed = g.node("Gather", [flat, attention.scatter], { attributes: { axis: 0 } });
  return addLinear(g, parts, packed, {
    name: `${layer}.o_proj`,
    out: model.hidden,
    into: heads * headDim,
    bias: outputBias,
  });
}

/** value [T, into] times the weight [out, into], transposed, plus the bias [out] where there is one. */
function addLinear(
  g: GraphBuilder,
  parts: BlockParts,
  value: string,
  layer: { name: string; out: number; into: number; bias: boolean },
): string {
  const product = matmulTransposed(g, value, parts.weight(`${layer.name}.weight`, [layer.out, layer.into]));
  return layer.bias ? g.node("Add", [product, parts.weight(`${layer.name}.bias`, [layer.out])]) : product;
}

function matmulTransposed(g: GraphBuilder, value: string, weight: string): string {
  return g.node("FusedMatMul", [value, weight], { domain: "com.microsoft", attributes: { transB: 1 } });
}

function rmsNorm(g: GraphBuilder, value: string, weight: string, eps: number): string {
  return g.node("SimplifiedLayerNormalization", [value, weight], {
    attributes: { axis: -1, epsilon: { float: eps } },
  });
}

function castTo(g: GraphBuilder, value: string, type: OnnxType): string {
  return g.node("Cast", [value], { attributes: { to: ONNX_TYPE[type] } });
}

function embed(g: GraphBuilder, files: WeightFiles, model: SupportedModel): string {
  const table = files.stored(g, "model.embed_tokens.weight", [model.vocab, model.hidden]);
  const rows = g.node("Gather", [table.value, g.input("ids", "int32", ["T"])], { attributes: { axis: 0 } });
  return table.type === "float32" ? rows : castTo(g, rows, "float32");
}

function injectedStates(g: GraphBuilder, model: SupportedModel): string {
  const bits = g.input("states", "uint16", ["T", model.hidden]);
  return castTo(g, g.node("BitCast", [bits], { attributes: { to: ONNX_TYPE.bfloat16 } }), "float32");
}

function inputPast(g: GraphBuilder, { decoder }: SupportedModel, block: number): string[] {
  const shape = [1, decoder.kvHeads, "past", decoder.headDim];
  return [`past_key.${block}`, `past_value.${block}`].map((name) => g.input(name, "float32", shape));
}

function outputPresent(
  g: GraphBuilder,
  { decoder }: SupportedModel,
  block: number,
  key: string,
  value: string,
) {
  const shape = [1, decoder.kvHeads, "present", decoder.headDim];
  g.output(g.node("Identity", [key], { name: `present_key.${block}` }), "float32", shape);
  g.output(g.node("Identity", [value], { name: `present_value.${block}` }), "float32", shape);
}

/**
 * The taps side by side as bf16 bits (a bf16 output would throw in onnxruntime-node), and what the statistics
 * need of each token, so that no JavaScript walks over the states.
 */
function outputTaps(g: GraphBuilder, { hidden }: SupportedModel, tapped: string[]): void {
  const axis = g.ints([1]);
  const slots = tapped.map((value) => g.node("Unsqueeze", [value, axis]));
  const all = g.node("Concat", slots, { attributes: { axis: 1 } });
  const bits = { attributes: { to: ONNX_TYPE.uint16 }, name: "states_out" };
  g.output(g.node("BitCast", [castTo(g, all, "bfloat16")], bits), "uint16", ["T", tapped.length, hidden]);
  const reductions = { mean: "ReduceMean", sumsq: "ReduceSumSquare", min: "ReduceMin", max: "ReduceMax" };
  for (const [name, op] of Object.entries(reductions)) {
    const reduced = g.node(op, [all, g.ints([2])], { attributes: { keepdims: 0 }, name });
    g.output(reduced, "float32", ["T", tapped.length]);
  }
}

function outputLogits(g: GraphBuilder, files: WeightFiles, model: SupportedModel, x: string): void {
  const rows = g.node("Gather", [x, g.input("logit_rows", "int32", ["R"])], { attributes: { axis: 0 } });
  const norm = files.float32(g, "model.norm.weight", [model.hidden]);
  const normed = rmsNorm(g, rows, norm, model.decoder.rmsNormEps);
  const head = model.tied ? "model.embed_tokens.weight" : "lm_head.weight";
  const logits = matmulTransposed(g, normed, files.float32(g, head, [model.vocab, model.hidden]));
  g.output(g.node("Identity", [logits], { name: "logits" }), "float32", ["R", model.vocab]);
}

const STORED_TYPES: Partial<Record<Dtype, OnnxType>> = { F32: "float32", BF16: "bfloat16", F16: "float16" };

/** The safetensors files as external data, each tensor added to a graph once. */
class WeightFiles {
  /** The deepest folder above all files, symlinks resolved: ONNX Runtime refuses links that leave it. */
  readonly folder: string;
  readonly #weights: ModelWeights;
  readonly #paths: Map<string, string>;
  readonly #values = new Map<string, { value: string; type: OnnxType }>();
  readonly #floats = new Map<string, string>();

  constructor(weights: ModelWeights) {
    this.#weights = weights;
    this.#paths = new Map(weights.files.map((file) => [file, realpathSync(file)]));
    this.folder = commonFolder([...this.#paths.values()]);
  }

  /** The tensor as it is stored. */
  stored(g: GraphBuilder, name: string, shape: number[]): { value: string; type: OnnxType } {
    const known = this.#values.get(name);
    if (known) return known;
    const tensor = needTensor(this.#weights, name, shape);
    const type = STORED_TYPES[tensor.dtype];
    if (!type) throw unsupportedDtype(tensor.file, name, tensor.dtype);
    const value = g.external(name, {
      type,
      shape,
      file: relative(this.folder, this.#paths.get(tensor.file)!),
      offset: tensor.startByte,
      bytes: tensor.endByte - tensor.startByte,
    });
    this.#values.set(name, { value, type });
    return { value, type };
  }

  /** The tensor in f32: cast at run time, since the CPU has no bf16 MatMul and folding would copy the model. */
  float32(g: GraphBuilder, name: string, shape: number[]): string {
    const { value, type } = this.stored(g, name, shape);
    if (type === "float32") return value;
    const cast =
      this.#floats.get(name) ?? g.firstNode("Cast", [value], { attributes: { to: ONNX_TYPE.float32 } });
    this.#floats.set(name, cast);
    return cast;
  }
}

function commonFolder(paths: string[]): string {
  let folder = dirname(paths[0]!);
  while (paths.some((path) => relative(folder, path).startsWith(".."))) folder = dirname(folder);
  return folder;
}

function unsupportedDtype(file: string, name: string, dtype: Dtype): RunError {
  return new RunError({
    op: "load model into the onnx engine",
    subject: file,
    message: `tensor "${name}": expected F32, BF16 or F16, found ${dtype}`,
    hint: "the transformers engine may run it: --engine transformers",
    exit: EXIT.configuration,
  });
}
