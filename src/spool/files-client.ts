import { Worker } from "node:worker_threads";
import { type ErrorWire, fromWire } from "./error-wire.ts";
import type * as files from "./files.ts";

/** The file calls that another thread may ask for: each takes one plain argument. */
type FileCalls = Pick<
  typeof files,
  | "openDirectory"
  | "claimDirectory"
  | "releaseDirectory"
  | "createPart"
  | "finishPart"
  | "dropFile"
  | "freeSpace"
  | "probeSpace"
  | "checkFile"
  | "quarantine"
>;

export interface FilesCall {
  id: number;
  name: keyof FileCalls;
  argument: unknown;
}

export type FilesAnswer = { id: number; value: unknown } | { id: number; error: ErrorWire };

/** The spool's file calls, done by one thread of their own. A thread that dies fails every call it had. */
export class FilesThread {
  readonly #worker = new Worker(workerUrl("files-worker"), { execArgv: [] });
  readonly #calls = new Map<
    number,
    { resolve: (value: unknown) => void; reject: (error: unknown) => void }
  >();
  #nextId = 0;
  #dead: Error | null = null;

  constructor() {
    this.#worker.unref();
    this.#worker.on("message", (answer: FilesAnswer) => {
      const call = this.#calls.get(answer.id);
      this.#calls.delete(answer.id);
      if (this.#calls.size === 0) this.#worker.unref();
      if ("error" in answer) call?.reject(fromWire(answer.error));
      else call?.resolve(answer.value);
    });
    this.#worker.on("error", (error) => this.#die(error as Error));
    this.#worker.on("exit", () => this.#die(new Error("the spool's file thread ended")));
  }

  call<Name extends keyof FileCalls>(
    name: Name,
    argument: Parameters<FileCalls[Name]>[0],
  ): Promise<Awaited<ReturnType<FileCalls[Name]>>> {
    if (this.#dead) return Promise.reject(this.#dead);
    return new Promise((resolve, reject) => {
      const id = this.#nextId++;
      this.#calls.set(id, { resolve: resolve as (value: unknown) => void, reject });
      this.#worker.ref();
      this.#worker.postMessage({ id, name, argument } satisfies FilesCall);
    });
  }

  async close(): Promise<void> {
    await this.#worker.terminate();
  }

  #die(error: Error): void {
    this.#dead ??= error;
    for (const { reject } of this.#calls.values()) reject(this.#dead);
    this.#calls.clear();
  }
}

/** A thread entry beside this file: `.js` in dist/, `.ts` where Node runs the source itself. */
export function workerUrl(name: string): URL {
  return new URL(`./${name}${import.meta.url.endsWith(".ts") ? ".ts" : ".js"}`, import.meta.url);
}
