import { silentLog } from "../base/log.ts";
import { openStore } from "../store/open.ts";
import { patientStore } from "../store/patient-store.ts";
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
    return await use(
      patientStore(store, {
        deadlineMs: RETRY_MS_MAX,
        log: silentLog,
        random: Math.random,
        onRetry: (error) => say(io, `the store: ${error.message}; trying again`),
      }),
    );
  } finally {
    store.close();
  }
}
