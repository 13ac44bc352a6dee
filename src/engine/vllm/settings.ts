import { z } from "zod";

/** How one vllm child works. */
export interface VllmSettings {
  /** Tokens of one of vLLM's batches. Prompts of two are open at once, so that it has the next when one is done. */
  forwardTokens: number;
  /** How long a connector's file may take after the answer. Below the watchdog's least limit of 60 s. */
  fileWaitMs: number;
  /** How long a server that does not answer is waited for before the child gives up (and is started anew). */
  connectMs: number;
  /** Between two sweeps of files that nobody waits for. */
  sweepMs: number;
  /** Engines that write into one filesystem: each counts on its part of the room. */
  sharers: number;
}

const count = z.number().int().positive();

/** `load`'s options. What other engines know and this one does not is ignored. */
const Options = z.object({
  forward_tokens: count.nullish(),
  file_wait_ms: count.nullish(),
  connect_ms: count.nullish(),
  sweep_ms: count.nullish(),
  sharers: count.nullish(),
});

/** vLLM's own max_num_batched_tokens on large cards (0.32, `vllm serve`); more in its queue costs nothing. */
const FORWARD_TOKENS = 16_384;
const FILE_WAIT_MS = 30_000;
const CONNECT_MS = 15_000;
const SWEEP_MS = 30_000;

/** Throws a ZodError where an option is of another type. */
export function readSettings(options: Record<string, unknown>): VllmSettings {
  const given = Options.parse(options);
  return {
    forwardTokens: given.forward_tokens ?? FORWARD_TOKENS,
    fileWaitMs: given.file_wait_ms ?? FILE_WAIT_MS,
    connectMs: given.connect_ms ?? CONNECT_MS,
    sweepMs: given.sweep_ms ?? SWEEP_MS,
    sharers: given.sharers ?? 1,
  };
}
