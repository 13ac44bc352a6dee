import { Worker } from "node:worker_threads";
import type { CopyJob, CopyResult } from "./connector-file.ts";
import type { CopyAnswer, CopyRequest } from "./copy-worker.ts";
import { VllmError } from "./failure.ts";

/** Copies states in a thread of its own, one file after another. */
export class Copier {
  readonly #worker = new Worker(new URL("./copy-worker.js", import.meta.url));
  readonly #waiting = new Map<number, (answer: CopyAnswer) => void>();
  #copies = 0;

  /** `onCrash`: the thread is gone, and what waits will never be answered. */
  constructor(onCrash: (error: Error) => void) {
    this.#worker.on("error", onCrash);
    this.#worker.on("message", (answer: CopyAnswer) => {
      this.#waiting.get(answer.number)?.(answer);
      this.#waiting.delete(answer.number);
    });
  }

  /** Rejects with a VllmError. */
  async copy(job: CopyJob): Promise<CopyResult> {
    const number = this.#copies++;
    const answer = await new Promise<CopyAnswer>((resolve) => {
      this.#waiting.set(number, resolve);
      this.#worker.postMessage({ number, job } satisfies CopyRequest);
    });
    if ("failure" in answer) throw new VllmError(answer.failure);
    return answer.result;
  }
}
