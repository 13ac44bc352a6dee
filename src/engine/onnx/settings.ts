import { z } from "zod";

/** How one onnx child computes. */
export interface EngineSettings {
  /** Of one operator; cores / engines is right. */
  threads: number;
  /** Tokens of one forward. Halved for good when memory runs out. */
  forwardTokens: number;
  /** Longer samples go in chunks of this. */
  prefillChunkTokens: number;
  /** Bytes that keys and values, and the attention's scores, may each take: halves of `memory_bytes`. */
  cacheBytes: number;
  attentionBytes: number;
}

const count = z.number().int().positive();

/** `load`'s options. What other engines know and this one does not is ignored. */
const Options = z.object({
  threads: count.nullish(),
  forward_tokens: count.nullish(),
  prefill_chunk_tokens: count.nullish(),
  memory_bytes: count.nullish(),
});

/** 2,048 tokens amortise the run-time casts of the weights to 2 % on a model of 135M; more gains nothing. */
const FORWARD_TOKENS = 2_048;
const PREFILL_CHUNK_TOKENS = 2_048;

/** Throws a ZodError where an option is of another type. */
export function readSettings(
  options: Record<string, unknown>,
  machine: { cores: number; memoryBytes: number },
): EngineSettings {
  const given = Options.parse(options);
  const forwardTokens = given.forward_tokens ?? FORWARD_TOKENS;
  const memoryBytes = given.memory_bytes ?? Math.floor(machine.memoryBytes / 4);
  return {
    threads: given.threads ?? machine.cores,
    forwardTokens,
    // No forward is larger than asked, not even that of one long sample.
    prefillChunkTokens: given.prefill_chunk_tokens ?? Math.min(PREFILL_CHUNK_TOKENS, forwardTokens),
    cacheBytes: Math.floor(memoryBytes / 2),
    attentionBytes: Math.floor(memoryBytes / 2),
  };
}
