import { DirectoryStore } from "./directory.ts";
import { type S3Options, S3Store } from "./s3.ts";
import type { OpenedStore, StoreSpec } from "./store.ts";

/**
 * Opens the store of one run (or a whole one). Makes no request: the first call does. The same on the main thread
 * and in worker threads; each has connections and credentials of its own. Call `close` when done.
 */
export function openStore(spec: StoreSpec, options: S3Options = {}): OpenedStore {
  return spec.kind === "directory" ? new DirectoryStore(spec) : new S3Store(spec, options);
}
