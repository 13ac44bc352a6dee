import { z } from "zod";

/**
 * The engine protocol, version 1: newline JSON, requests on the child's fd 0, answers on its fd 1.
 * Non-finite numbers travel as null. Blocks ("taps") are Forebay's: block k, 0-based, its output before any
 * following norm. States are written by the child into `file` at the offsets named, bf16 little-endian,
 * row-major [tokens, taps, hidden]. `docs/engine-protocol.md` is this file in words.
 */

/** A longer line is a protocol fault: the child is killed. 5,000 samples of answers fit with room. */
export const LINE_BYTES_MAX = 32 * 2 ** 20;

const count = z.number().int().nonnegative();
const real = z.number().nullable();

export const CheckKind = z.enum(["injection", "pad-independence", "greedy"]);
export type CheckKind = z.infer<typeof CheckKind>;

export const LoadRequest = z.object({
  type: z.literal("load"),
  id: count,
  /** Absolute path of a Hugging Face model directory. */
  model: z.string(),
  /** What the engine computes in; states are always bf16. */
  dtype: z.enum(["auto", "float32", "bfloat16", "float16"]),
  device: z.string().nullable(),
  taps: z.array(count).min(1),
  /** Engine-specific (threads, forward_tokens, prefill_chunk_tokens, memory_bytes, attn, strict ...). */
  options: z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()])),
});

export const ExtractSample = z.object({
  row: count,
  ids: z.array(count).min(1),
  /** Where this sample's states begin in `file`. */
  offset: count,
});

export const ExtractRequest = z.object({
  type: z.literal("extract"),
  id: count,
  attempt: count,
  file: z.string(),
  samples: z.array(ExtractSample).min(1),
});

export const CheckRequest = z.object({
  type: z.literal("check"),
  id: count,
  kinds: z.array(CheckKind),
  /** A scratch file holding the STORED states of `samples`, at their offsets. */
  file: z.string(),
  samples: z.array(ExtractSample).min(1),
});

const ShutdownRequest = z.object({ type: z.literal("shutdown") });

export const Request = z.discriminatedUnion("type", [
  LoadRequest,
  ExtractRequest,
  CheckRequest,
  ShutdownRequest,
]);
export type Request = z.infer<typeof Request>;
export type LoadRequest = z.infer<typeof LoadRequest>;
export type ExtractRequest = z.infer<typeof ExtractRequest>;
export type ExtractSample = z.infer<typeof ExtractSample>;
export type CheckRequest = z.infer<typeof CheckRequest>;

/** Unasked and first. */
export const Hello = z.object({
  type: z.literal("hello"),
  proto: z.literal(1),
  pid: count,
  engine: z.string(),
  versions: z.record(z.string(), z.string()),
  devices: z.array(
    z.object({
      uuid: z.string().nullable(),
      name: z.string(),
      bytes: count.nullable(),
      /** False: it was asked for and is not there, so that no model can be loaded. Left out: true. */
      seen: z.boolean().optional(),
    }),
  ),
});

export const Loaded = z.object({
  type: z.literal("loaded"),
  id: count,
  arch: z.string(),
  blocks: count,
  hidden: count,
  vocab: count,
  positions: count.nullable(),
  dtype: z.string(),
  /** What is really in use: "sdpa", "fla", "ort-cpu" ... */
  kernels: z.array(z.string()),
  /** The GPUs that it computes on: UUIDs, or numbers as nvidia-smi counts. Left out or empty: none, or not known. */
  devices: z.array(z.string()).optional(),
  /** How much the engine wants outstanding to keep itself full. */
  slots: z.object({ tokens: count, batches: count }),
  /** Most tokens of one forward, half of which it is told after memory ran out. Left out: half of `slots.tokens`. */
  forward_tokens: count.optional(),
  /** Which checks this engine can do. */
  checks: z.array(CheckKind),
});

/** After each forward. */
export const Progress = z.object({
  type: z.literal("progress"),
  id: count,
  tokens_done: count,
  tokens_total: count,
});

export const TapStats = z.object({ mean: real, rms: real, absmax: real });

export const SampleStates = z.object({
  row: count,
  bytes: count,
  tokens: count,
  /** CRC-32C of the ids the engine really ran, as little-endian I32. */
  ids_crc32c: count,
  /** CRC-32C of the bytes written. */
  crc32c: count,
  /** One per tap, in tap order. */
  stats: z.array(TapStats),
  finite: z.boolean(),
  /** Whether some tap's states are all one value (all zero included). */
  constant: z.boolean(),
});

/** The last answer to an extract: all its rows but those that an `error` named before. */
export const States = z.object({
  type: z.literal("states"),
  id: count,
  /** Echo of the request's. */
  attempt: count,
  samples: z.array(SampleStates),
  seconds: z.object({ forward: real, write: real }),
});

export const EngineErrorKind = z.enum(["oom", "nonfinite", "bad-request", "io", "crash"]);
export type EngineErrorKind = z.infer<typeof EngineErrorKind>;

/**
 * With `rows`: those failed, and the rest of the request follows in `states` (unless none is left). Without: every
 * row of the request not answered yet, and nothing follows. After `retry: "restart"` the child exits by itself.
 */
export const ErrorAnswer = z.object({
  type: z.literal("error"),
  id: count,
  /** The rows that failed; empty: all that are not answered yet. */
  rows: z.array(count),
  kind: EngineErrorKind,
  errno: z.string().nullable(),
  message: z.string(),
  retry: z.enum(["smaller", "no", "restart"]),
});

export const CheckResult = z.object({
  kind: CheckKind,
  ok: z.boolean(),
  /** Block id where it failed, or null. */
  tap: count.nullable(),
  /** Measured difference and the limit it was held against (relative error, or logit difference). */
  measured: real,
  limit: real,
  /** For injection: the difference one block later, which must be far above `limit`. */
  control: real,
  message: z.string(),
});

export const Checked = z.object({ type: z.literal("checked"), id: count, results: z.array(CheckResult) });

/** Every 5 s, from a thread that does not compute. */
const Alive = z.object({
  type: z.literal("alive"),
  stage: z.enum(["import", "load", "extract", "idle"]),
});

const Bye = z.object({ type: z.literal("bye") });

export const Answer = z.discriminatedUnion("type", [
  Hello,
  Loaded,
  Progress,
  States,
  ErrorAnswer,
  Checked,
  Alive,
  Bye,
]);
export type Answer = z.infer<typeof Answer>;
export type Hello = z.infer<typeof Hello>;
export type Loaded = z.infer<typeof Loaded>;
export type Progress = z.infer<typeof Progress>;
export type States = z.infer<typeof States>;
export type SampleStates = z.infer<typeof SampleStates>;
export type TapStats = z.infer<typeof TapStats>;
export type ErrorAnswer = z.infer<typeof ErrorAnswer>;
export type CheckResult = z.infer<typeof CheckResult>;
export type Checked = z.infer<typeof Checked>;
