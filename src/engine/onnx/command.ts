import { fileURLToPath } from "node:url";
import type { EngineCommand } from "../child.ts";

/**
 * How to start the onnx engine's child. `env` is its whole environment.
 * The shell sets the descriptors before anything else runs, and becomes node: requests on 3, answers on 4, and what
 * a library prints, even from C, goes to stderr. Node itself cannot move its descriptors.
 */
export function onnxEngineCommand(options: { env: Record<string, string> }): EngineCommand {
  const child = fileURLToPath(new URL("./child.js", import.meta.url));
  const moveDescriptors = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >&2';
  return {
    name: "onnx",
    file: "/bin/sh",
    args: ["-c", moveDescriptors, process.execPath, child, "3", "4"],
    env: options.env,
  };
}
