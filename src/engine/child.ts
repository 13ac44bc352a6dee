import { type ChildProcess, spawn } from "node:child_process";
import type { ChildLog } from "./child-log.ts";
import type { Clock } from "./clock.ts";
import { LineReader } from "./lines.ts";

/** How to start an engine's child. `env` is its whole environment (see environment.ts). */
export interface EngineCommand {
  name: string;
  file: string;
  args: string[];
  env: Record<string, string>;
}

export interface ChildEnd {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** Set where there never was a process. */
  spawnError: Error | null;
  killedByUs: boolean;
  /** It is still there: SIGKILL came to nothing, as it does while a process waits in a driver. */
  unkillable: boolean;
}

export interface ChildOptions {
  command: EngineCommand;
  clock: Clock;
  stderr: ChildLog;
  /** Between two steps of ending it: asked, SIGTERM, SIGKILL. */
  graceMs: number;
  unkillableMs: number;
  lineBytesMax: number;
  onLine: (line: string) => void;
  onLineTooLong: () => void;
  /** It closed its answers' pipe and still lives after `graceMs`. */
  onPipeClosed: () => void;
}

/** Pipes are read to their end after `exit`, but something else that holds them open is not waited for. */
const DRAIN_MS = 2_000;

/** A process in a process group of its own that speaks in lines; whatever it started ends with it. */
export class Child {
  /** 0 where it could not be started. */
  readonly pid: number;
  /** Resolves, never rejects, once it has exited and its pipes are read, or `unkillableMs` after a SIGKILL. */
  readonly exited: Promise<ChildEnd>;
  readonly #options: ChildOptions;
  readonly #process: ChildProcess;
  #ended = false;
  #killedByUs = false;
  #cancelNextStep = () => {};
  #end!: (end: Pick<ChildEnd, "code" | "signal"> & Partial<ChildEnd>) => void;

  constructor(options: ChildOptions) {
    this.#options = options;
    const { file, args, env } = options.command;
    this.#process = spawn(file, args, { detached: true, env, stdio: ["pipe", "pipe", "pipe"] });
    this.pid = this.#process.pid ?? 0;
    this.exited = this.#follow();
  }

  send(line: string): void {
    this.#process.stdin?.write(`${line}\n`);
  }

  /** It is about to end by itself; SIGTERM if it has not within the grace. */
  expectExit(): void {
    this.#cancelNextStep();
    this.#cancelNextStep = this.#options.clock.setTimer(() => this.terminate(), this.#options.graceMs);
  }

  /** SIGTERM; SIGKILL if it has not ended within the grace. */
  terminate(): void {
    this.#signal("SIGTERM");
    this.#cancelNextStep();
    this.#cancelNextStep = this.#options.clock.setTimer(() => this.kill(), this.#options.graceMs);
  }

  kill(): void {
    this.#cancelNextStep();
    this.#signal("SIGKILL");
    const { clock, unkillableMs } = this.#options;
    const giveUp = () => this.#end({ code: null, signal: null, unkillable: true });
    this.#cancelNextStep = clock.setTimer(giveUp, unkillableMs);
  }

  #signal(signal: "SIGTERM" | "SIGKILL"): void {
    if (this.#ended || this.pid === 0) return;
    this.#killedByUs = true;
    signalGroup(this.pid, signal);
  }

  #follow(): Promise<ChildEnd> {
    const { clock, stderr, graceMs, lineBytesMax, onLine, onLineTooLong, onPipeClosed } = this.#options;
    const child = this.#process;
    const lines = new LineReader(lineBytesMax, onLine);
    let told = false;
    let cancelPipeTimer = () => {};
    // EPIPE of a child that is gone: its exit tells.
    child.stdin?.on("error", () => {});
    child.stderr?.on("data", (chunk: Buffer) => stderr.append(chunk));
    child.stdout?.on("data", (chunk: Buffer) => {
      if (lines.push(chunk) || told) return;
      told = true;
      onLineTooLong();
    });
    child.stdout?.on("end", () => {
      if (!this.#ended) cancelPipeTimer = clock.setTimer(onPipeClosed, graceMs);
    });
    return new Promise((resolve) => {
      this.#end = (end) => {
        if (this.#ended) return;
        this.#ended = true;
        this.#cancelNextStep();
        cancelPipeTimer();
        stderr.close();
        // What is still there must not keep this process.
        child.unref();
        for (const pipe of child.stdio) pipe?.destroy();
        resolve({ spawnError: null, unkillable: false, killedByUs: this.#killedByUs, ...end });
      };
      child.on("error", (spawnError) => {
        if (this.pid === 0) this.#end({ code: null, signal: null, spawnError });
      });
      child.on("exit", (code, signal) => {
        // What it started may still hold its pipes, or write into a pack.
        signalGroup(this.pid, "SIGKILL");
        const cancelDrain = clock.setTimer(() => this.#end({ code, signal }), DRAIN_MS);
        child.on("close", () => {
          cancelDrain();
          this.#end({ code, signal });
        });
      });
    });
  }
}

/** To the whole process group; a group that is gone already is no error. */
function signalGroup(pid: number, signal: "SIGTERM" | "SIGKILL"): void {
  try {
    process.kill(-pid, signal);
  } catch {
    // ESRCH: nothing is left of it. EPERM: what is left is not ours.
  }
}
