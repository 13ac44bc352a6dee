import { fullJitterMs, sleep } from "../base/backoff.ts";
import { RunError } from "../base/errors.ts";
import { openStore as openSpec } from "../store/open.ts";
import type { Store, StoreSpec } from "../store/store.ts";

/** Opens the store for the time of `use`, and closes it whatever happens. */
export async function withStore<T>(spec: StoreSpec, use: (store: Store) => Promise<T>): Promise<T> {
  const store = await openSpec(spec);
  try {
    return await use(store);
  } finally {
    store.close();
  }
}

/**
 * Repeats a look at the store where the failure passes by itself. For verbs that a person waits for: a few tries,
 * then the error.
 */
export async function patiently<T>(call: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let attempt = 0; ; attempt += 1) {
    try {
      return await call();
    } catch (error) {
      const passes = error instanceof RunError && error.remedy === "retry";
      if (!passes || attempt >= 3 || signal.aborted) throw error;
      await sleep(fullJitterMs(attempt, { baseMs: 200, capMs: 2_000, random: Math.random }), signal);
    }
  }
}
