import type { RunError } from "../base/errors.ts";
import { makeLog } from "../base/log.ts";
import { openStore } from "../store/open.ts";
import { withRetries } from "../store/retry.ts";
import type { OpenedStore, StoreSpec } from "../store/store.ts";
import { type Io, say } from "./io.ts";

/** A person waits for these verbs: after so long they want the error, not another try. */
const RETRY_MS_MAX = 20_000;

/** Opens the store for the time of `use`, reading with retries, and closes it whatever happens. */
export async function withStore<T>(
  spec: StoreSpec,
  io: Io,
  use: (store: OpenedStore) => Promise<T>,
): Promise<T> {
  const store = await openStore(spec);
  try {
    return await use(patient(store, io));
  } finally {
    store.close();
  }
}

/** The same store, whose single reads are tried again where the failure passes by itself. */
function patient(store: OpenedStore, io: Io): OpenedStore {
  const log = makeLog([], Date.now);
  const again = <T>(attempt: () => Promise<T>, signal: AbortSignal | undefined) =>
    withRetries(attempt, {
      signal,
      deadlineMs: RETRY_MS_MAX,
      log,
      random: Math.random,
      onRetry: (error: RunError) => say(io, `the store: ${error.message}; trying again`),
    });
  return new Proxy(store, {
    get(target, property) {
      if (property === "head") {
        return (key: string, signal?: AbortSignal) => again(() => target.head(key, signal), signal);
      }
      if (property === "get") {
        return (...[key, range, signal]: Parameters<OpenedStore["get"]>) =>
          again(() => target.get(key, range, signal), signal);
      }
      const value = Reflect.get(target, property, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
}
