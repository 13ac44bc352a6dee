import { EXIT, RunError } from "../../base/errors.ts";
import type { DecoderConfig, ModelConfig } from "../../model/config.ts";

/** A model that the onnx engine can run. */
export type SupportedModel = ModelConfig & { decoder: DecoderConfig };

/**
 * Narrows `model` to what the onnx engine can run: dense Llama, Qwen2 and Qwen3, rope plain, linear or llama3.
 * Throws (configuration) naming what it cannot do and the engine that can. Loads nothing, so a run can ask before
 * it starts a child.
 */
export function needSupported(model: ModelConfig, subject: string): SupportedModel {
  const { decoder } = model;
  const fault = decoder ? decoderFault(model, decoder) : `the architecture ${model.architecture}`;
  if (!decoder || fault !== null) {
    throw new RunError({
      op: "load model into the onnx engine",
      subject,
      message: `expected a dense Llama, Qwen2 or Qwen3 in f32, bf16 or f16, found ${fault}`,
      hint: "the transformers engine runs it: --engine transformers",
      exit: EXIT.configuration,
    });
  }
  return { ...model, decoder };
}

function decoderFault(model: ModelConfig, decoder: DecoderConfig): string | null {
  const { heads, kvHeads, headDim, ropeScaling } = decoder;
  if (model.quantization !== null) return `weights quantised by ${model.quantization}`;
  if (ropeScaling.kind === "other") return `the rope scaling "${ropeScaling.name}"`;
  if (decoder.slidingWindow) return "sliding-window attention";
  if (decoder.hiddenAct !== "silu") return `the activation ${decoder.hiddenAct}`;
  if (heads % kvHeads !== 0) return `${heads} heads over ${kvHeads} key-value heads`;
  if (!Number.isInteger(headDim) || headDim % 8 !== 0) return `heads of ${headDim}`;
  return null;
}
