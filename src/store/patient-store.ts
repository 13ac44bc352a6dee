import { type RetryOptions, withRetries } from "./retry.ts";
import type { OpenedStore } from "./store.ts";

/**
 * The same store, whose single requests are tried again where the failure passes by itself. A create-only PUT whose
 * answer was lost comes back as "exists": who puts so must compare. A LIST that breaks off is begun anew, and what its
 * caller was given already is left out.
 */
export function patientStore(store: OpenedStore, retry: RetryOptions): OpenedStore {
  const again = <T>(attempt: () => Promise<T>, signal: AbortSignal | undefined) =>
    withRetries(attempt, { ...retry, signal: signal ?? retry.signal });
  const listAgain = <T>(
    begin: () => AsyncIterable<T>,
    nameOf: (item: T) => string,
    signal: AbortSignal | undefined,
  ) => listOnce(begin, nameOf, (attempt) => again(attempt, signal));
  return {
    address: store.address,
    put: (key, body, options) => again(() => store.put(key, body, options), options.signal),
    head: (key, signal) => again(() => store.head(key, signal), signal),
    get: (key, range, signal) => again(() => store.get(key, range, signal), signal),
    delete: (key, signal) => again(() => store.delete(key, signal), signal),
    check: (signal) => again(() => store.check(signal), signal),
    list: (prefix, signal) =>
      listAgain(
        () => store.list(prefix, signal),
        ({ key }) => key,
        signal,
      ),
    folders: (prefix, signal) =>
      listAgain(
        () => store.folders(prefix, signal),
        (name) => name,
        signal,
      ),
    reloadCredentials: () => store.reloadCredentials(),
    close: () => store.close(),
  };
}

async function* listOnce<T>(
  begin: () => AsyncIterable<T>,
  nameOf: (item: T) => string,
  again: (attempt: () => Promise<IteratorResult<T>>) => Promise<IteratorResult<T>>,
): AsyncGenerator<T> {
  const given = new Set<string>();
  let items = begin()[Symbol.asyncIterator]();
  const next = async () => {
    try {
      return await items.next();
    } catch (error) {
      items = begin()[Symbol.asyncIterator]();
      throw error;
    }
  };
  try {
    for (let item = await again(next); !item.done; item = await again(next)) {
      const name = nameOf(item.value);
      if (given.has(name)) continue;
      given.add(name);
      yield item.value;
    }
  } finally {
    await items.return?.();
  }
}
