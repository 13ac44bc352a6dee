import { type ChildProcess, spawn } from "node:child_process";
import { accessSync, constants, mkdtempSync, rmSync, statfsSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { sleep } from "../../base/backoff.ts";
import { errnoOf } from "../../base/errors.ts";
import { plainText } from "../../base/log.ts";
import { VllmClient } from "./client.ts";
import { refused, serverGone, type VllmError } from "./failure.ts";
import { type LaunchOptions, launchArguments } from "./launch.ts";

/** Memory that the connector's files may take; a container has 64 MB of it unless told otherwise. */
export const SHARED_MEMORY = "/dev/shm";
const TAIL_CHARS = 16_384;
const HEALTH_EVERY_MS = 500;
/** SIGTERM lets vLLM free its shared memory; longer than this nobody waits. */
const STOP_MS = 4_000;
/** Exit codes: of a shell, and of Python's argument parser. */
const NO_SUCH_PROGRAM = 127;
const BAD_ARGUMENTS = 2;

/**
 * Removes the folder and ends the server's whole group when its descriptor 3 is closed: that is when the child that started it is gone,
 * however it went. The group is the server's own, so that what else lives in the child's is not touched.
 */
const LEASHED = 'folder=$1; shift; { read -r _ <&3; rm -rf "$folder"; kill -KILL 0; } & exec "$0" "$@" 3<&-';

/** A vLLM server of our own, with a port and a connector folder of its own. */
export class VllmServer {
  readonly url: string;
  readonly folder: string;
  readonly #process: ChildProcess;
  #ended: { code: number | null; reason: string } | null = null;
  #tail = "";

  /** Resolves once the server is healthy. Rejects where it ends before, or `signal` aborts. */
  static async start(
    options: Omit<LaunchOptions, "port" | "folder"> & { program: string; onEnd: (reason: string) => void },
  ): Promise<VllmServer> {
    const folder = mkdtempSync(join(connectorParent(), "forebay-vllm-"));
    try {
      const port = await freePort();
      const args = launchArguments({ ...options, port, folder });
      const server = new VllmServer(options.program, args, { port, folder, onEnd: options.onEnd });
      await server.#untilHealthy();
      return server;
    } catch (error) {
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  private constructor(
    program: string,
    args: string[],
    options: { port: number; folder: string; onEnd: (reason: string) => void },
  ) {
    this.url = `http://127.0.0.1:${options.port}`;
    this.folder = options.folder;
    // Its log goes to our stderr, which the supervisor keeps; its last error is told with its end.
    this.#process = spawn("/bin/sh", ["-c", LEASHED, program, options.folder, ...args], {
      detached: true,
      stdio: ["ignore", "pipe", "pipe", "pipe"],
    });
    for (const stream of [this.#process.stdout, this.#process.stderr]) {
      stream?.on("data", (chunk: Buffer) => {
        process.stderr.write(chunk);
        this.#tail = (this.#tail + chunk.toString("utf8")).slice(-TAIL_CHARS);
      });
    }
    const end = (code: number | null, reason: string) => {
      this.#ended ??= { code, reason };
      options.onEnd(reason);
    };
    this.#process.on("error", (error) => end(null, `vLLM could not be started: ${error.message}`));
    this.#process.on("exit", (code, signal) => {
      const lines = this.#tail.split("\n").filter((line) => line.trim() !== "");
      const last =
        lines.findLast((line) => /\berror\b|Error:/i.test(line)) ?? lines.at(-1) ?? "it said nothing";
      end(code, `vLLM ended with ${signal ?? `code ${code}`}: ${plainText(last, 200)}`);
    });
  }

  /** Asks it to end, then makes it, and removes its folder. */
  async stop(): Promise<void> {
    const pid = this.#process.pid;
    if (pid !== undefined && this.#ended === null) {
      const exited = new Promise<void>((resolve) => this.#process.once("exit", () => resolve()));
      signalGroup(pid, "SIGTERM");
      await Promise.race([exited, sleep(STOP_MS)]);
    }
    if (pid !== undefined) signalGroup(pid, "SIGKILL");
    rmSync(this.folder, { recursive: true, force: true });
  }

  async #untilHealthy(): Promise<void> {
    const client = new VllmClient(this.url);
    try {
      for (;;) {
        const isWell = await client.isWell();
        // What answers on its port after its end is somebody else's.
        if (this.#ended) throw endedEarly(this.#ended);
        if (isWell) return;
        await sleep(HEALTH_EVERY_MS);
      }
    } finally {
      client.close();
    }
  }
}

function endedEarly({ code, reason }: { code: number | null; reason: string }): VllmError {
  if (code === NO_SUCH_PROGRAM) return refused("there is no program vllm: pip install vllm, or --python");
  const message = `${reason} (before it was ready)`;
  // The same arguments will not do the next time either.
  return code === BAD_ARGUMENTS ? refused(message) : serverGone(message);
}

/** The fastest place that the connector's files can have. */
function connectorParent(): string {
  try {
    accessSync(SHARED_MEMORY, constants.W_OK);
    return SHARED_MEMORY;
  } catch {
    return tmpdir();
  }
}

/** Bytes that may still be written to the filesystem of `folder`; null where there is no such folder (yet). */
export function freeBytes(folder: string): number | null {
  try {
    const { bavail, bsize } = statfsSync(folder);
    return bavail * bsize;
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return null;
    throw error;
  }
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve, reject) => {
    probe.once("error", reject);
    probe.listen(0, "127.0.0.1", resolve);
  });
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  if (address === null || typeof address === "string") throw new Error("a listening socket has no port");
  return address.port;
}

function signalGroup(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(-pid, signal);
  } catch {
    // ESRCH: nothing is left of it.
  }
}
