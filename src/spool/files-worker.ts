import { parentPort } from "node:worker_threads";
import { EXIT } from "../base/errors.ts";
import { toWire } from "./error-wire.ts";
import * as files from "./files.ts";
import type { FilesAnswer, FilesCall } from "./files-client.ts";

/** Thread entry: runs the spool's file calls one after the other, so that a slow disk never stalls the main thread. */

let last: Promise<void> = Promise.resolve();

parentPort!.on("message", (call: FilesCall) => {
  last = last.then(() => answer(call));
});

async function answer({ id, name, argument }: FilesCall): Promise<void> {
  let reply: FilesAnswer;
  try {
    // biome-ignore lint/performance/noDynamicNamespaceImportAccess: the calls are the module
    const run = files[name] as (argument: unknown) => unknown;
    reply = { id, value: await run(argument) };
  } catch (error) {
    const path = typeof argument === "string" ? argument : JSON.stringify(argument).slice(0, 300);
    reply = { id, error: toWire(error, { op: `spool ${name}`, subject: path, exit: EXIT.disk }) };
  }
  parentPort!.postMessage(reply);
}
