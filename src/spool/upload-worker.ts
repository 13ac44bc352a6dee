import { parentPort, workerData } from "node:worker_threads";
import { EXIT } from "../base/errors.ts";
import { sharedView } from "../base/io-buffer.ts";
import { UPLOADS_MAX } from "../base/limits.ts";
import { openStore } from "../store/open.ts";
import type { OpenedStore, StoreSpec } from "../store/store.ts";
import { toWire } from "./error-wire.ts";
import { meterStore, type RequestSample } from "./metered-store.ts";
import { type AttemptResult, type UploadJob, uploadPack } from "./upload-pack.ts";

/** Thread entry: makes attempts at packs, several at a time, each exactly as uploadPack; decides nothing else. */

export interface UploadWorkerData {
  spec: StoreSpec;
}

export type ToUploadWorker =
  | {
      kind: "upload";
      id: number;
      job: UploadJob;
      buffer: SharedArrayBuffer;
      /** A higher number than before: read the credentials anew first. */
      generation: number;
    }
  | { kind: "abort"; id: number };

export interface FromUploadWorker {
  id: number;
  result: AttemptResult;
  requests: RequestSample[];
}

const { spec } = workerData as UploadWorkerData;
const nowMs = () => performance.now();
const aborts = new Map<number, AbortController>();

let opening: Promise<OpenedStore> | null = null;
let generation = 0;
let lastRead: Promise<unknown> = Promise.resolve();

parentPort!.on("message", (message: ToUploadWorker) => {
  if (message.kind === "abort") aborts.get(message.id)?.abort();
  else void attempt(message);
});

async function attempt(message: ToUploadWorker & { kind: "upload" }): Promise<void> {
  const { id, job } = message;
  const abort = new AbortController();
  aborts.set(id, abort);
  const requests: RequestSample[] = [];
  let result: AttemptResult;
  try {
    const metered = meterStore(await storeAt(message.generation), (sample) => requests.push(sample), nowMs);
    const buffer = sharedView(message.buffer);
    result = await uploadPack(job, { store: metered, buffer, signal: abort.signal, nowMs, readTurn });
  } catch (error) {
    // uploadPack answers every failure; what arrives here is a store that cannot even be opened.
    const wire = toWire(error, { op: "open store", subject: job.path, exit: EXIT.store });
    const outcome =
      wire.remedy === "retry"
        ? ({ kind: "retry", error: wire, lookFirst: job.lookFirst } as const)
        : ({ kind: "blocked", scope: "store", error: wire } as const);
    result = { outcome, seconds: { disk: 0, upload: 0, verify: 0 }, uploadedBytes: 0 };
  }
  aborts.delete(id);
  parentPort!.postMessage({ id, result, requests } satisfies FromUploadWorker);
}

function readTurn<T>(read: () => Promise<T>): Promise<T> {
  const turn = lastRead.then(read);
  lastRead = turn.catch(() => {});
  return turn;
}

/** The thread's store, opened by its first attempt. */
async function storeAt(wanted: number): Promise<OpenedStore> {
  opening ??= openStore(spec, { sockets: UPLOADS_MAX });
  const store = await opening;
  if (wanted > generation) store.reloadCredentials();
  generation = Math.max(generation, wanted);
  return store;
}
