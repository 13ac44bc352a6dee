import { roundUp } from "../base/bytes.ts";

/** The layers of a run by every name in use: `numbering` of run.json. */
export interface TapNumbers {
  /** Forebay, DFlash, SpecForge: block k, its output before any following norm. */
  blocks: readonly number[];
  /** vLLM, speculators: i is the output of block i-1. */
  vllm: readonly number[];
  /** Hugging Face `output_hidden_states`; null where it has no such state. */
  hf: readonly (number | null)[];
  /** Whether the last block's output is among the taps. */
  last_state: boolean;
  last_state_norm: "pre-norm" | "post-norm" | null;
}

/** What is the same in every pack of a run. */
export interface PackFacts {
  /** sha256 of the run's identity, 64 hex digits (`run_id` of run.json). */
  identity: string;
  numbering: TapNumbers;
}

export const PACK_FORMAT = "forebay-pack-1";

/** A later Forebay may add a key without making the headers of a run's remaining packs too long. */
const SPARE_BYTES = 128;

/** The run-constant part of a pack's `__metadata__`, in the order in which it is written. */
export function packMetadata({ identity, numbering }: PackFacts): Record<string, string> {
  return {
    format: PACK_FORMAT,
    identity,
    dtype: "bfloat16",
    taps: numbering.blocks.join(","),
    taps_vllm: numbering.vllm.join(","),
    taps_hf: numbering.hf.map((id) => id ?? "-").join(","),
    last_state: numbering.last_state ? "present" : "absent",
    last_state_norm: numbering.last_state_norm ?? "-",
  };
}

/** PackShape.metadataBytes of a run: a bound on the JSON of packMetadata. The identity is not yet known then. */
export function metadataBytesOf(numbering: TapNumbers): number {
  const json = JSON.stringify(packMetadata({ identity: "0".repeat(64), numbering }));
  return roundUp(json.length - "{}".length + SPARE_BYTES, 64);
}

/** A reason as a pack carries it: printable ASCII that needs no JSON escape and holds no ";". */
export function skipReasonText(reason: string, charsMax: number): string {
  const plain = reason
    .replaceAll(";", ",")
    .replaceAll('"', "'")
    .replaceAll("\\", "/")
    .replace(/[^ -~]+/g, " ");
  return plain.slice(0, charsMax).trim() || "unknown";
}
