/** The thread of the vllm child that touches every number: reads the connector's files, writes the pack's. */
import { parentPort } from "node:worker_threads";
import { type CopyJob, type CopyResult, StatesCopier } from "./connector-file.ts";
import { type Failure, failureOf } from "./failure.ts";

export type CopyRequest = { number: number; job: CopyJob };
export type CopyAnswer = { number: number } & ({ result: CopyResult } | { failure: Failure });

const port = parentPort;
if (!port) throw new Error("copy-worker.js is a worker thread of child.js");

const copier = new StatesCopier(() => performance.now());

port.on("message", ({ number, job }: CopyRequest) => {
  let answer: CopyAnswer;
  try {
    answer = { number, result: copier.copy(job) };
  } catch (error) {
    answer = { number, failure: failureOf(error) };
  }
  port.postMessage(answer);
});
