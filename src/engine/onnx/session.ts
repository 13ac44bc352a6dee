import { InferenceSession, Tensor } from "onnxruntime-node";
import type { BatchIndices } from "./batch.ts";
import type { DecoderGraph } from "./decoder.ts";
import { type RopeTables, ropeTables } from "./rope.ts";
import type { SupportedModel } from "./support.ts";

/** What one forward gives of its T tokens; the statistics are over the hidden axis, in f32. */
export interface Forward {
  tokens: number;
  /** [tokens, taps, hidden], bf16 bits. */
  states: Uint16Array;
  /** Each [tokens, taps]. */
  mean: Float32Array;
  sumSquares: Float32Array;
  min: Float32Array;
  max: Float32Array;
}

export type Feeds = Record<string, Tensor>;

/**
 * A session over external weights. They stay memory-mapped and shared between processes: nothing is folded (that
 * copies the model in f32, twice the file) and nothing prepacked. The memory pattern of each new length would be
 * kept for ever.
 */
export async function openSession(graph: DecoderGraph, threads: number): Promise<InferenceSession> {
  return InferenceSession.create(graph.model, {
    executionProviders: ["cpu"],
    graphOptimizationLevel: "all",
    intraOpNumThreads: threads,
    interOpNumThreads: 1,
    enableMemPattern: false,
    logSeverityLevel: 3,
    extra: {
      session: {
        model_external_initializers_file_folder_path: graph.folder,
        disable_prepacking: "1",
      },
      optimization: { disable_specified_optimizers: "ConstantFolding" },
    },
  });
}

/** The rotary tables as feeds, made once for the longest sequence seen. */
export class RopeFeeds {
  readonly #model: SupportedModel;
  #tables: RopeTables | null = null;

  constructor(model: SupportedModel) {
    this.#model = model;
  }

  /** `cos` and `sin` for positions 0..positions-1. */
  feeds(positions: number): Feeds {
    const { headDim, ropeTheta, ropeScaling } = this.#model.decoder;
    if (!this.#tables || this.#tables.positions < positions) {
      const rounded = 2 ** Math.ceil(Math.log2(Math.max(positions, 512)));
      this.#tables = ropeTables({ headDim, theta: ropeTheta, scaling: ropeScaling, positions: rounded });
    }
    const half = headDim / 2;
    const shape = [positions, half];
    return {
      cos: new Tensor("float32", this.#tables.cos.subarray(0, positions * half), shape),
      sin: new Tensor("float32", this.#tables.sin.subarray(0, positions * half), shape),
    };
  }
}

/** The index inputs of a graph for `batch`, all but the tokens; `past` tokens came before (0 without a cache). */
export function indexFeeds(batch: BatchIndices, past: number): Feeds {
  const positions = past + batch.padded;
  const lastPosition = new Int32Array(batch.sequences).fill(positions - 1);
  return {
    gather: int32(batch.gather, [batch.sequences, batch.padded]),
    scatter: int32(batch.scatter, [batch.tokens]),
    last_position: int32(lastPosition, [batch.sequences]),
    positions: int32(Int32Array.of(positions), [1]),
  };
}

export function int32(values: Int32Array, shape: number[]): Tensor {
  return new Tensor("int32", values, shape);
}

export function uint16(values: Uint16Array, shape: number[]): Tensor {
  return new Tensor("uint16", values, shape);
}

export function emptyFloat32(shape: number[]): Tensor {
  return new Tensor("float32", new Float32Array(0), shape);
}

/** The outputs of a graph with taps. */
export function readForward(outputs: InferenceSession.ReturnType, tokens: number): Forward {
  return {
    tokens,
    states: outputs.states_out!.data as Uint16Array,
    mean: float32(outputs, "mean"),
    sumSquares: float32(outputs, "sumsq"),
    min: float32(outputs, "min"),
    max: float32(outputs, "max"),
  };
}

export function float32(outputs: InferenceSession.ReturnType, name: string): Float32Array {
  return outputs[name]!.data as Float32Array;
}
