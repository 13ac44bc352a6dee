import { type ChildProcess, spawn } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

/** The built program; FOREBAY_TEST_DIST names another build of it (scripts/mutants.mjs). */
const DIST = process.env.FOREBAY_TEST_DIST ?? fileURLToPath(new URL("../../dist", import.meta.url));
export const CLI = join(DIST, "cli.js");
export const FIXTURES = fileURLToPath(new URL("../../fixtures", import.meta.url));
export const DEMO = fileURLToPath(new URL("../../demo", import.meta.url));

export interface Ended {
  code: number | null;
  signal: NodeJS.Signals | null;
  stdout: string;
  stderr: string;
}

export interface Running {
  child: ChildProcess;
  ended: Promise<Ended>;
}

/** A machine as a run sees it: a HOME, a working directory and a scratch disk of its own. `remove` ends its processes. */
export class Machine {
  readonly root: string;
  readonly env: Record<string, string>;
  readonly #running = new Set<ChildProcess>();

  constructor(env: Record<string, string> = {}) {
    this.root = mkdtempSync(join(tmpdir(), "forebay-machine-"));
    for (const name of ["home", "work"]) mkdirSync(join(this.root, name));
    this.env = {
      PATH: process.env.PATH ?? "",
      HOME: join(this.root, "home"),
      XDG_STATE_HOME: join(this.root, "state"),
      NO_COLOR: "1",
      ...env,
    };
  }

  path(...names: string[]): string {
    return join(this.root, ...names);
  }

  start(args: string[], options: { env?: Record<string, string> } = {}): Running {
    const child = spawn(process.execPath, [CLI, ...args], {
      cwd: join(this.root, "work"),
      env: { ...this.env, ...options.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.#running.add(child);
    const out = { stdout: "", stderr: "" };
    child.stdout.on("data", (piece: Buffer) => (out.stdout += piece.toString("utf8")));
    child.stderr.on("data", (piece: Buffer) => (out.stderr += piece.toString("utf8")));
    const ended = new Promise<Ended>((resolve, reject) => {
      child.on("error", reject);
      child.on("close", (code, signal) => {
        this.#running.delete(child);
        resolve({ code, signal, ...out });
      });
    });
    return { child, ended };
  }

  run(args: string[], options: { env?: Record<string, string> } = {}): Promise<Ended> {
    return this.start(args, options).ended;
  }

  async remove(): Promise<void> {
    for (const child of this.#running) child.kill("SIGKILL");
    rmSync(this.root, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
  }
}

/** Events of a run directory's log, oldest first; a last line that is cut (its writer was killed) is left out. */
export function eventsOf(runDirectory: string): Record<string, unknown>[] {
  const path = join(runDirectory, "events.log");
  if (!existsSync(path)) return [];
  return readFileSync(path, "utf8")
    .split("\n")
    .flatMap((line) => {
      try {
        return [JSON.parse(line) as Record<string, unknown>];
      } catch {
        return [];
      }
    });
}

/** Stops a process, and waits until every thread of it stands. */
export async function freeze(pid: number): Promise<void> {
  process.kill(pid, "SIGSTOP");
  const stands = (thread: string) =>
    /^State:\s+T/m.test(readFileSync(`/proc/${pid}/task/${thread}/status`, "utf8"));
  while (!readdirSync(`/proc/${pid}/task`).every(stands))
    await new Promise((resolve) => setTimeout(resolve, 10));
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** As `isAlive`, for the process that had this pid at `at` (ISO 8601): after minutes of tests another one may have it. */
export function isStillAlive(pid: number, at: string): boolean {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    const uptimeS = Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]);
    // Field 22: its start since boot, in ticks of 10 ms.
    const startedMs = Date.now() - (uptimeS - Number(fields[19]) / 100) * 1000;
    return fields[0] !== "Z" && startedMs <= Date.parse(at);
  } catch {
    return false;
  }
}
