import { DirectoryStore } from "./directory.ts";
import type { S3Options } from "./s3.ts";
import type { OpenedStore, StoreSpec } from "./store.ts";

/**
 * Opens the store of one run (or a whole one). Makes no request: the first call does. The same on the main thread
 * and in worker threads; each has connections and credentials of its own. Call `close` when done.
 */
export async function openStore(spec: StoreSpec, options: S3Options = {}): Promise<OpenedStore> {
  if (spec.kind === "directory") return new DirectoryStore(spec);
  // A tenth of a second and more that a directory store need not pay.
  const { S3Store } = await import("./s3.ts");
  return new S3Store(spec, options);
}
