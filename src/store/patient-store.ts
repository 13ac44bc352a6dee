import { type RetryOptions, withRetries } from "./retry.ts";
import type { OpenedStore } from "./store.ts";

/**
 * The same store, whose single requests are tried again where the failure passes by itself. A create-only PUT whose
 * answer was lost comes back as "exists": who puts so must compare. A LIST is not repeated here: its caller has
 * already taken what came before the failure.
 */
export function patientStore(store: OpenedStore, retry: RetryOptions): OpenedStore {
  const again = <T>(attempt: () => Promise<T>, signal: AbortSignal | undefined) =>
    withRetries(attempt, { ...retry, signal: signal ?? retry.signal });
  return {
    address: store.address,
    put: (key, body, options) => again(() => store.put(key, body, options), options.signal),
    head: (key, signal) => again(() => store.head(key, signal), signal),
    get: (key, range, signal) => again(() => store.get(key, range, signal), signal),
    delete: (key, signal) => again(() => store.delete(key, signal), signal),
    check: (signal) => again(() => store.check(signal), signal),
    list: (prefix, signal) => store.list(prefix, signal),
    folders: (prefix, signal) => store.folders(prefix, signal),
    reloadCredentials: () => store.reloadCredentials(),
    close: () => store.close(),
  };
}
