import { type Store, StoreError } from "../store/store.ts";

/** One request to the store, as it is counted. */
export interface RequestSample {
  op: "put" | "head" | "get" | "delete";
  outcome: "ok" | "exists" | "retried" | "failed";
  seconds: number;
}

/** A store whose every request but LIST is told to `record`, after it ended. `nowMs` is monotonic. */
export function meterStore(
  store: Store,
  record: (sample: RequestSample) => void,
  nowMs: () => number,
): Store {
  const timed = async <T>(op: RequestSample["op"], act: () => Promise<T>): Promise<T> => {
    const startMs = nowMs();
    const end = (outcome: RequestSample["outcome"]) =>
      record({ op, outcome, seconds: (nowMs() - startMs) / 1000 });
    try {
      const value = await act();
      const exists =
        typeof value === "object" && value !== null && "kind" in value && value.kind === "exists";
      end(exists ? "exists" : "ok");
      return value;
    } catch (error) {
      end(error instanceof StoreError && error.remedy === "retry" ? "retried" : "failed");
      throw error;
    }
  };
  return {
    address: store.address,
    put: (key, body, options) => timed("put", () => store.put(key, body, options)),
    head: (key, signal) => timed("head", () => store.head(key, signal)),
    get: (key, range, signal) => timed("get", () => store.get(key, range, signal)),
    delete: (key, signal) => timed("delete", () => store.delete(key, signal)),
    // Pages of a LIST are the store's own business, and uploads make none.
    list: (prefix, signal) => store.list(prefix, signal),
    close: () => store.close(),
  };
}
