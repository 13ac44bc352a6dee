import { Worker } from "node:worker_threads";
import type { StoreSpec } from "../store/store.ts";
import type { FromUploadWorker, ToUploadWorker, UploadWorkerData } from "./upload-worker.ts";

export interface UploadThreadsOptions {
  /** Most threads; the first begins at once. */
  count: number;
  /** The threads' entry. */
  url: URL;
  spec: StoreSpec;
  onAnswer: (answer: FromUploadWorker) => void;
  /** A thread died with these attempts; another takes its place, unless `isHopeless`: they die one after the other. */
  onDeath: (death: { ids: number[]; reason: string; isHopeless: boolean }) => void;
}

interface Thread {
  worker: Worker;
  ids: Set<number>;
}

/** Deaths in a row, without an answer in between. */
const DEATHS_MAX = 5;

/** What a thread has in hand before another is begun: each costs a tenth of a second, which small runs do not need. */
const ATTEMPTS_EACH = 4;

/** The threads that make attempts; each new attempt goes to the one with the fewest. */
export class UploadThreads {
  readonly #options: UploadThreadsOptions;
  readonly #threads: Thread[] = [];
  readonly #threadOf = new Map<number, Thread>();
  #deaths = 0;
  #isClosing = false;

  constructor(options: UploadThreadsOptions) {
    this.#options = options;
    this.#start();
  }

  send(message: Extract<ToUploadWorker, { kind: "upload" }>): void {
    let thread = this.#threads.reduce((a, b) => (b.ids.size < a.ids.size ? b : a));
    if (thread.ids.size >= ATTEMPTS_EACH && this.#threads.length < this.#options.count)
      thread = this.#start();
    thread.ids.add(message.id);
    this.#threadOf.set(message.id, thread);
    thread.worker.postMessage(message);
  }

  abort(id: number): void {
    this.#threadOf.get(id)?.worker.postMessage({ kind: "abort", id } satisfies ToUploadWorker);
  }

  /** Ends the threads wherever they are: no attempt can be interrupted at a point where that loses anything. */
  async close(): Promise<void> {
    this.#isClosing = true;
    await Promise.all(this.#threads.map(({ worker }) => worker.terminate()));
  }

  #start(): Thread {
    const worker = new Worker(this.#options.url, {
      // What the program was started with (--input-type, --test) is not for a thread.
      execArgv: [],
      workerData: { spec: this.#options.spec } satisfies UploadWorkerData,
    });
    const thread: Thread = { worker, ids: new Set() };
    this.#threads.push(thread);
    let reason = "it ended";
    worker.on("message", (answer: FromUploadWorker) => {
      this.#deaths = 0;
      thread.ids.delete(answer.id);
      this.#threadOf.delete(answer.id);
      this.#options.onAnswer(answer);
    });
    worker.on("error", (error) => {
      reason = error instanceof Error ? error.message : String(error);
    });
    worker.on("exit", () => this.#bury(thread, reason));
    return thread;
  }

  #bury(thread: Thread, reason: string): void {
    this.#threads.splice(this.#threads.indexOf(thread), 1);
    const ids = [...thread.ids];
    for (const id of ids) this.#threadOf.delete(id);
    if (this.#isClosing) return;
    this.#deaths += 1;
    const isHopeless = this.#deaths > DEATHS_MAX;
    if (!isHopeless) this.#start();
    this.#options.onDeath({ ids, reason, isHopeless });
  }
}
