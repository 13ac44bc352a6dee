import { spawn } from "node:child_process";

/** Giving a machine back takes seconds; what takes longer is stuck. */
const COMMAND_MS_MAX = 10 * 60_000;

/**
 * Runs the operator's `--on-exit` command in a shell, with FOREBAY_EXIT_CODE set, and resolves with its own exit
 * code (null: killed, or it could not be started). Never throws: the run's exit code must not depend on it.
 */
export function runOnExit(options: {
  command: string;
  exitCode: number;
  env: NodeJS.ProcessEnv;
  directory: string;
}): Promise<number | null> {
  return new Promise((resolve) => {
    const child = spawn("/bin/sh", ["-c", options.command], {
      cwd: options.directory,
      env: { ...options.env, FOREBAY_EXIT_CODE: String(options.exitCode) },
      stdio: ["ignore", "inherit", "inherit"],
      timeout: COMMAND_MS_MAX,
    });
    child.on("error", () => resolve(null));
    child.on("close", (code) => resolve(code));
  });
}
