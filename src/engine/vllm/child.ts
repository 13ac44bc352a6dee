/**
 * The vllm engine's process: the protocol and the HTTP requests on its main thread, the numbers on a worker thread.
 * After the descriptors, its argument is a VllmTarget as JSON.
 */
import { serve } from "../serving-child.ts";
import type { VllmTarget } from "./command.ts";
import { Copier } from "./copier.ts";
import { VllmEngine } from "./engine.ts";
import { VllmError } from "./failure.ts";

const target = JSON.parse(process.argv[4] ?? "{}") as VllmTarget;
const copier = new Copier((error) => child.crash(error));
const engine = new VllmEngine({
  target,
  send: (answer) => child.send(answer),
  // Of a failure whose place is known the sentence says all.
  onCrash: (error) => child.crash(error instanceof VllmError ? error.message : error),
  copy: (job) => copier.copy(job),
  devices: "url" in target ? [] : (process.env.CUDA_VISIBLE_DEVICES ?? "").split(",").filter(Boolean),
  pid: process.pid,
  nowMs: () => performance.now(),
});

const child = serve({
  hello: {
    engine: "vllm",
    versions: { node: process.versions.node },
    devices: [
      { uuid: null, name: "url" in target ? `vLLM at ${target.url}` : "vLLM started here", bytes: null },
    ],
  },
  receive: (request) => engine.receive(request),
  // A server that was started here ends with it; where this process is killed, of its closed leash (server.ts).
  stop: () => engine.stop(),
});
