/** The thread of the onnx child that loads ONNX Runtime and computes; `run` blocks it, so the protocol is elsewhere. */
import { availableParallelism, totalmem } from "node:os";
import { parentPort } from "node:worker_threads";
import type { Answer, Request } from "../protocol.ts";
import { OnnxEngine } from "./engine.ts";

const port = parentPort;
if (!port) throw new Error("worker.js is a worker thread of child.js");

const engine = new OnnxEngine({
  send: (answer: Answer) => port.postMessage(answer),
  machine: { cores: availableParallelism(), memoryBytes: totalmem() },
  nowMs: () => performance.now(),
});
port.on("message", (request: Request) => {
  // Ends this thread, not the process.
  if (request.type === "shutdown") process.exit(0);
  engine.receive(request);
});
