import { spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { makeLog } from "../base/log.ts";
import { keepRunning } from "./keep.ts";
import { runOnExit } from "./on-exit.ts";
import type { SupervisorExit } from "./restart-decision.ts";
import { type LaunchRecord, lookAtRunDirectory } from "./run-directory.ts";

/**
 * Entry file of the small parent behind `--detach`: `node keeper.js RUN_DIRECTORY`, in a session of its own, with
 * its output going to keeper.log. It holds no data of the run: killing it leaves the supervisor running.
 */

const directory = process.argv[2]!;
const cli = fileURLToPath(new URL("../cli.js", import.meta.url));
const stopping = new AbortController();
// The supervisor is asked to stop and finishes in its own time; the keeper waits for it.
for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"] as const) process.on(signal, () => stopping.abort());

function supervise(launch: LaunchRecord, signal: AbortSignal): Promise<SupervisorExit> {
  return new Promise((resolve, reject) => {
    const child = spawn(process.execPath, [cli, "supervise", directory], {
      cwd: launch.directory,
      stdio: ["ignore", "inherit", "inherit"],
    });
    const stop = () => child.kill("SIGTERM");
    if (signal.aborted) stop();
    signal.addEventListener("abort", stop, { once: true });
    child.on("error", reject);
    child.on("exit", (code, killedBy) => {
      signal.removeEventListener("abort", stop);
      resolve({ code, signal: killedBy });
    });
  });
}

const exitCode = await keepRunning({
  directory,
  supervise,
  signal: stopping.signal,
  log: makeLog([(event) => process.stderr.write(`${JSON.stringify(event)}\n`)], Date.now),
  random: Math.random,
  nowMs: Date.now,
});
const command = lookAtRunDirectory(directory).launch?.onExit ?? null;
if (command !== null) await runOnExit({ command, exitCode, env: process.env, directory });
process.exitCode = exitCode;
