import { Worker } from "node:worker_threads";
import {
  ChunkTokenizer,
  type ChunkTokenizerOptions,
  type ConversationChunk,
  type TokenChunk,
} from "./chunk-tokenizer.ts";

/** Tokenises chunks on some threads; answers may be awaited in any order. */
export interface TokenizeThreads {
  /** How many chunks are worth having under way. */
  readonly chunksMax: number;
  tokenize(chunk: ConversationChunk): Promise<TokenChunk>;
  close(): Promise<void>;
}

/** With one thread the work is done in this one. Throws what ChunkTokenizer throws, before any thread starts. */
export function startTokenizeThreads(options: ChunkTokenizerOptions, threads: number): TokenizeThreads {
  const here = new ChunkTokenizer(options);
  if (threads <= 1) {
    return { chunksMax: 1, tokenize: (chunk) => here.tokenize(chunk), close: async () => {} };
  }
  return new WorkerPool(options, threads);
}

interface Waiting {
  resolve(tokens: TokenChunk): void;
  reject(error: Error): void;
}

class TokenizeWorker {
  readonly #worker: Worker;
  /** By number: chunks of one thread overlap, so a short one may overtake. */
  readonly #waiting = new Map<number, Waiting>();
  #sent = 0;
  #failure: Error | null = null;

  constructor(options: ChunkTokenizerOptions) {
    // Without the flags of this process: some (--input-type) make a worker of a file fail.
    this.#worker = new Worker(workerEntry(), { workerData: options, execArgv: [] });
    this.#worker.on("message", (answer: { id: number; tokens?: TokenChunk; failed?: string }) => {
      const waiting = this.#waiting.get(answer.id);
      this.#waiting.delete(answer.id);
      if (answer.tokens) waiting?.resolve(answer.tokens);
      else waiting?.reject(new Error(`tokenising failed: ${answer.failed}`));
    });
    this.#worker.on("error", (error) => this.#fail(error as Error));
    this.#worker.on("exit", () => this.#fail(new Error("a tokenising thread ended early")));
  }

  get load(): number {
    return this.#waiting.size;
  }

  /** Rejects where the thread is dead already: it would never answer. */
  send(chunk: ConversationChunk): Promise<TokenChunk> {
    if (this.#failure) return Promise.reject(this.#failure);
    return new Promise((resolve, reject) => {
      const id = this.#sent;
      this.#sent += 1;
      this.#waiting.set(id, { resolve, reject });
      this.#worker.postMessage({ id, chunk });
    });
  }

  async close(): Promise<void> {
    await this.#worker.terminate();
  }

  #fail(error: Error): void {
    this.#failure ??= error;
    for (const waiting of this.#waiting.values()) waiting.reject(error);
    this.#waiting.clear();
  }
}

class WorkerPool implements TokenizeThreads {
  readonly #workers: TokenizeWorker[];

  constructor(options: ChunkTokenizerOptions, threads: number) {
    this.#workers = Array.from({ length: threads }, () => new TokenizeWorker(options));
  }

  /** Two a thread: one at work, one waiting at its door. */
  get chunksMax(): number {
    return 2 * this.#workers.length;
  }

  tokenize(chunk: ConversationChunk): Promise<TokenChunk> {
    const idlest = this.#workers.reduce((best, worker) => (worker.load < best.load ? worker : best));
    return idlest.send(chunk);
  }

  async close(): Promise<void> {
    await Promise.all(this.#workers.map((worker) => worker.close()));
  }
}

/** The compiled entry beside this file; Node 20 runs no TypeScript in a worker, so only dist/ has one. */
function workerEntry(): URL {
  return new URL("./tokenize-worker.js", import.meta.url);
}
