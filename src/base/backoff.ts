/**
 * Full-jitter exponential delay before attempt `attempt` (0 = the first retry), in ms.
 * Source: "Exponential Backoff And Jitter", AWS Architecture Blog: uniform in [0, min(cap, base * 2^attempt)).
 */
export function fullJitterMs(
  attempt: number,
  options: { baseMs: number; capMs: number; random: () => number },
): number {
  return options.random() * Math.min(options.capMs, options.baseMs * 2 ** attempt);
}

/** Resolves after `ms`, or rejects with the signal's reason as soon as it aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const onAbort = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
