import { spawn, spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { CLI, type Ended, type Machine } from "./program.ts";

/** One system call as it was begun; calls of one thread stand in their order. */
export interface Call {
  thread: number;
  name: string;
  /** As strace prints them: quoted paths, descriptors as 5</path>. */
  args: string;
}

/** Throws what to install where there is no strace. */
export function needStrace(): void {
  if (spawnSync("strace", ["-V"]).error) throw new Error("strace is not installed: apt-get install strace");
}

/** Runs the program under strace with these options of strace's; the calls are written to `output`. */
export function runTraced(
  machine: Machine,
  args: string[],
  options: string[],
  output: string,
): Promise<Ended> {
  needStrace();
  const child = spawn("strace", ["-f", "-y", "-o", output, ...options, process.execPath, CLI, ...args], {
    cwd: machine.path("work"),
    env: machine.env,
    stdio: ["ignore", "pipe", "pipe"],
  });
  const out = { stdout: "", stderr: "" };
  child.stdout.on("data", (piece: Buffer) => (out.stdout += piece.toString("utf8")));
  child.stderr.on("data", (piece: Buffer) => (out.stderr += piece.toString("utf8")));
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code, signal) => resolve({ code, signal, ...out }));
  });
}

export function readCalls(output: string): Call[] {
  return readFileSync(output, "utf8")
    .split("\n")
    .flatMap((line) => {
      const match = /^(\d+) +(\w+)\((.*)$/.exec(line);
      return match ? [{ thread: Number(match[1]), name: match[2]!, args: match[3]! }] : [];
    });
}
