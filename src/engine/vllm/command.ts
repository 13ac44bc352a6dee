import { fileURLToPath } from "node:url";
import type { EngineCommand } from "../child.ts";

/** A server that runs, or the program to start one with and a person's own arguments for it. */
export type VllmTarget = { url: string } | { program: string; extra: readonly string[] };

/**
 * How to start the vllm engine's child. `env` is its whole environment, and a started server's. As for the onnx
 * child, the shell moves the descriptors: requests on 3, answers on 4.
 */
export function vllmEngineCommand(options: {
  target: VllmTarget;
  env: Record<string, string>;
}): EngineCommand {
  const child = fileURLToPath(new URL("./child.js", import.meta.url));
  const moveDescriptors = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >&2';
  return {
    name: "vllm",
    file: "/bin/sh",
    args: ["-c", moveDescriptors, process.execPath, child, "3", "4", JSON.stringify(options.target)],
    env: withoutExpandableSegments(options.env),
  };
}

/** Other engines are better with it; vLLM does not start a connector with it: "incompatible with ...". */
function withoutExpandableSegments(env: Record<string, string>): Record<string, string> {
  const { PYTORCH_CUDA_ALLOC_CONF: conf, ...rest } = env;
  const settings = (conf ?? "")
    .split(",")
    .filter((one) => one !== "" && !one.startsWith("expandable_segments"));
  return settings.length > 0 ? { ...rest, PYTORCH_CUDA_ALLOC_CONF: settings.join(",") } : rest;
}
