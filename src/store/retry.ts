import { fullJitterMs, sleep } from "../base/backoff.ts";
import { RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { StoreError } from "./store.ts";

export interface RetryOptions {
  signal?: AbortSignal;
  /** No new attempt is begun after so long; then the last error is thrown. Default: for ever. */
  deadlineMs?: number;
  log: Log;
  /** Uniform in [0, 1). */
  random: () => number;
  /** Told before each wait. */
  onRetry?: (error: RunError, delayMs: number) => void;
  /** Monotonic. Default: performance.now. */
  nowMs?: () => number;
}

const BASE_MS = 200;
/** The store is asked again at least this often, so that it is found within seconds of its return. */
const CAP_MS = 10_000;

/**
 * Calls `attempt` until it succeeds, waiting in between with capped, fully jittered exponential delays, never less
 * than the store's own Retry-After. Only failures whose remedy is "retry" are tried again.
 */
export async function withRetries<T>(attempt: () => Promise<T>, options: RetryOptions): Promise<T> {
  const nowMs = options.nowMs ?? (() => performance.now());
  const startMs = nowMs();
  for (let failures = 0; ; failures += 1) {
    options.signal?.throwIfAborted();
    try {
      return await attempt();
    } catch (error) {
      if (!(error instanceof RunError) || error.remedy !== "retry" || options.signal?.aborted) throw error;
      const delayMs = delayAfter(error, failures, options.random);
      if (nowMs() - startMs + delayMs > (options.deadlineMs ?? Number.POSITIVE_INFINITY)) throw error;
      options.log.warn("store.retry", {
        op: error.op,
        subject: error.subject,
        kind: error instanceof StoreError ? error.kind : null,
        status: error instanceof StoreError ? (error.status ?? null) : null,
        failures: failures + 1,
        delay_ms: Math.round(delayMs),
      });
      options.onRetry?.(error, delayMs);
      await sleep(delayMs, options.signal);
    }
  }
}

/** Jitter on top of Retry-After, or all who were told the same second would come back together. */
export function delayAfter(error: RunError, failures: number, random: () => number): number {
  const jitterMs = fullJitterMs(failures, { baseMs: BASE_MS, capMs: CAP_MS, random });
  return (error instanceof StoreError ? (error.retryAfterMs ?? 0) : 0) + jitterMs;
}
