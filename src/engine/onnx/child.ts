/** The onnx engine's process: the protocol on its main thread, the computing on a worker thread. */
import { createRequire } from "node:module";
import { cpus, totalmem } from "node:os";
import { Worker } from "node:worker_threads";
import type { Answer, Request } from "../protocol.ts";
import { serve } from "../serving-child.ts";

const worker = new Worker(new URL("./worker.js", import.meta.url));
let isImported = false;
const over = new Promise<void>((resolve) => worker.once("exit", () => resolve()));

const child = serve({
  hello: {
    engine: "onnx",
    versions: { node: process.versions.node, onnxruntime: onnxRuntimeVersion() },
    devices: [{ uuid: null, name: cpus()[0]?.model.trim() ?? "cpu", bytes: totalmem() }],
  },
  receive: (request) => worker.postMessage(request),
  isImported: () => isImported,
  // Its present forward is waited for: ONNX Runtime throws where its thread's JavaScript is gone when it comes back.
  rest: async () => {
    worker.postMessage({ type: "shutdown" } satisfies Request);
    await over;
  },
});
worker.once("online", () => {
  isImported = true;
});
worker.on("message", (answer: Answer) => child.send(answer));
worker.on("error", (error) => child.crash(error));

function onnxRuntimeVersion(): string {
  const { version } = createRequire(import.meta.url)("onnxruntime-node/package.json") as { version: string };
  return version;
}
