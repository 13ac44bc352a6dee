import { type Log, plainText } from "../base/log.ts";
import { parseAnswer } from "./answer.ts";
import { Child, type EngineCommand } from "./child.ts";
import { ChildLog } from "./child-log.ts";
import { type Clock, realClock } from "./clock.ts";
import { type EngineError, type FailureKind, Fault, type ProtocolFault, type Retry } from "./engine-error.ts";
import { describeExit, type Ending, type EngineExit, exitError } from "./engine-exit.ts";
import { type AnyWaiting, Outstanding, type Silence } from "./outstanding.ts";
import { type ExtractAnswer, PendingExtract } from "./pending-extract.ts";
import {
  type Answer,
  type Checked,
  type CheckRequest,
  type ErrorAnswer,
  type ExtractRequest,
  type Hello,
  LINE_BYTES_MAX,
  type Loaded,
  type LoadRequest,
  type Progress,
  type Request,
  type States,
} from "./protocol.ts";
import { DEFAULT_LIMITS, type EngineLimits } from "./watchdog.ts";

export interface EngineOptions {
  command: EngineCommand;
  /** Names this engine in logs and errors, "onnx-0". */
  label: string;
  log: Log;
  /** Where the child's stderr goes; null: only its last 200 lines are kept, in memory. */
  stderrFile: string | null;
  /** Default 8 MiB, and as much again in `<stderrFile>.1`. */
  stderrBytesMax?: number;
  clock?: Clock;
  limits?: Partial<EngineLimits>;
  /** Aborting it kills the child, whatever it does. */
  signal?: AbortSignal;
}

/**
 * The parent's side of one engine: one child process in a process group of its own, from `start` to `exited`.
 * Every line from it is checked; whatever breaks the protocol, or is silent for too long, is killed. When that
 * happens, and when the child dies by itself, the outstanding requests reject with an `EngineError`, but only
 * once the child has exited: until then it may still write into their files. (One that even SIGKILL does not end counts
 * as gone; it can write into nothing but a file that nobody reads any more.)
 * Start it from the main thread: a child's PR_SET_PDEATHSIG fires when the thread that spawned it ends.
 */
export class Engine {
  readonly label: string;
  readonly pid: number;
  /** Resolves, never rejects, once the child has exited and its pipes are read. */
  readonly exited: Promise<EngineExit>;
  readonly #child: Child;
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #limits: EngineLimits;
  readonly #stderr: ChildLog;
  readonly #stderrFile: string | null;
  readonly #outstanding: Outstanding;
  readonly #startedMs: number;
  #greeted!: { resolve: (hello: Hello) => void; reject: (error: EngineError) => void };
  #hello: Hello | null = null;
  #loaded: Loaded | null = null;
  #end: Ending | null = null;
  #exit: EngineExit | null = null;
  #saidBye = false;
  #cancelWatchdog = () => {};

  /** Resolves after `hello`. Rejects, with the child gone, where it cannot be started or does not greet. */
  static async start(options: EngineOptions): Promise<Engine> {
    options.signal?.throwIfAborted();
    const engine = new Engine(options);
    await new Promise<Hello>((resolve, reject) => {
      engine.#greeted = { resolve, reject };
    });
    return engine;
  }

  private constructor(options: EngineOptions) {
    const { command, label, log, stderrFile, signal } = options;
    this.label = label;
    this.#stderrFile = stderrFile;
    this.#log = log;
    this.#clock = options.clock ?? realClock;
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#outstanding = new Outstanding(this.#clock, this.#limits);
    this.#stderr = new ChildLog({
      path: stderrFile,
      bytesMax: options.stderrBytesMax ?? 8 * 2 ** 20,
      onError: (error) => log.warn("engine.stderr-file-failed", { engine: label, error: String(error) }),
    });
    this.#startedMs = this.#clock.nowMs();
    this.#child = new Child({
      command,
      clock: this.#clock,
      stderr: this.#stderr,
      graceMs: this.#limits.stopGraceMs,
      unkillableMs: this.#limits.unkillableMs,
      lineBytesMax: LINE_BYTES_MAX,
      onLine: (line) => this.#onLine(line),
      onLineTooLong: () =>
        this.#breach(
          "line-too-long",
          `expected lines of at most ${LINE_BYTES_MAX} bytes, found a longer one`,
        ),
      onPipeClosed: () => this.#breach("pipe-closed", "it closed its answers' pipe and lives on"),
    });
    this.pid = this.#child.pid;
    this.exited = this.#untilExit(command.file, signal);
    this.#arm();
  }

  get hello(): Hello {
    if (!this.#hello) throw new Error("an engine is handed out only after its hello");
    return this.#hello;
  }

  /** What the child answered to `load`; null before. */
  get loaded(): Loaded | null {
    return this.#loaded;
  }

  /** False from the first fault, the first request to stop, or the exit on. */
  get usable(): boolean {
    return this.#end === null && this.#exit === null;
  }

  stderrTail(): string[] {
    return this.#stderr.tail();
  }

  /** Resolves with the model's facts. Rejects (the child is gone) also where the child answers with an error. */
  load(request: Omit<LoadRequest, "type" | "id">): Promise<Loaded> {
    return new Promise((resolve, reject) => {
      const id = this.#outstanding.newId();
      this.#ask({ kind: "load", id, resolve, reject, sinceMs: 0 }, { ...request, type: "load", id });
    });
  }

  /** Several may be outstanding. Rows that a living child fails are in the answer; it rejects only at a death. */
  extract(
    request: Omit<ExtractRequest, "type" | "id">,
    onProgress?: (tokensDone: number, tokensTotal: number) => void,
  ): Promise<ExtractAnswer> {
    return new Promise((resolve, reject) => {
      const id = this.#outstanding.newId();
      const pending = new PendingExtract(request);
      this.#ask(
        { kind: "extract", id, resolve, reject, sinceMs: 0, pending, onProgress },
        { ...request, type: "extract", id },
      );
    });
  }

  /** The gate's checks. Rejects (the child is gone) also where the child answers with an error. */
  check(request: Omit<CheckRequest, "type" | "id">): Promise<Checked> {
    return new Promise((resolve, reject) => {
      const id = this.#outstanding.newId();
      const { kinds } = request;
      this.#ask({ kind: "check", id, resolve, reject, sinceMs: 0, kinds }, { ...request, type: "check", id });
    });
  }

  /** Asks it to end; after `stopGraceMs` SIGTERM, after as much again SIGKILL. Resolves when it has exited. */
  shutdown(): Promise<EngineExit> {
    if (this.usable) {
      this.#end = {
        kind: "stopped",
        fault: null,
        message: "it was asked to stop",
        rows: [],
        retry: "restart",
      };
      this.#send({ type: "shutdown" });
      this.#arm();
      this.#child.expectExit();
    }
    return this.exited;
  }

  /** SIGKILL of the whole group, now. Resolves when it has exited. */
  kill(reason = "it was killed"): Promise<EngineExit> {
    this.#fail({ kind: "stopped", message: reason, end: "kill" });
    return this.exited;
  }

  #ask(waiting: AnyWaiting, message: Request): void {
    if (this.#exit) {
      waiting.reject(this.#error(waiting, this.#exit));
      return;
    }
    this.#outstanding.add(waiting);
    if (this.usable) this.#send(message);
    this.#arm();
  }

  #send(message: Request): void {
    this.#child.send(JSON.stringify(message));
  }

  // --- what the child says ---

  #onLine(line: string): void {
    // A child that is being ended for a fault is not believed any more; its last words are only noted.
    if (this.#end && this.#end.kind !== "stopped") {
      this.#log.debug("engine.late-answer", { engine: this.label, line: plainText(line, 200) });
      return;
    }
    try {
      this.#onAnswer(parseAnswer(line));
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      this.#breach(error.fault, error.message, error.rows);
    }
    this.#arm();
  }

  #onAnswer(answer: Answer): void {
    if (answer.type === "hello") {
      this.#onHello(answer);
      return;
    }
    if (this.#hello === null) throw new Fault("hello-missing", `expected hello first, found ${answer.type}`);
    switch (answer.type) {
      case "alive":
        // Advisory, and only while loading: a hung forward beats as happily as a busy one.
        break;
      case "bye":
        this.#saidBye = true;
        break;
      case "loaded":
        this.#onLoaded(answer);
        break;
      case "checked":
        this.#onChecked(answer);
        break;
      case "progress":
        this.#onProgress(answer);
        break;
      case "states":
        this.#onStates(answer);
        break;
      case "error":
        this.#onError(answer);
        break;
    }
  }

  #onHello(hello: Hello): void {
    if (this.#hello) throw new Fault("hello-twice", "it greeted twice");
    this.#hello = hello;
    this.#log.info("engine.hello", { engine: this.label, pid: this.pid, name: hello.engine });
    this.#greeted.resolve(hello);
  }

  #onLoaded(loaded: Loaded): void {
    const waiting = this.#find(loaded, "load");
    if (!waiting) return;
    this.#loaded = loaded;
    this.#outstanding.close(waiting);
    waiting.resolve(loaded);
  }

  #onChecked(checked: Checked): void {
    const waiting = this.#find(checked, "check");
    if (!waiting) return;
    const found = checked.results.map(({ kind }) => kind).join(", ");
    if (found !== waiting.kinds.join(", ")) {
      throw new Fault("wrong-answer", `expected results of ${waiting.kinds.join(", ")}, found: ${found}`);
    }
    this.#outstanding.close(waiting);
    waiting.resolve(checked);
  }

  #onProgress(progress: Progress): void {
    const waiting = this.#find(progress, null);
    if (waiting?.kind === "check") this.#outstanding.stepped(waiting);
    if (waiting?.kind !== "extract") return;
    this.#outstanding.advance(waiting, waiting.pending.progress(progress));
    waiting.onProgress?.(waiting.pending.tokensDone, waiting.pending.tokensTotal);
  }

  #onStates(states: States): void {
    const waiting = this.#find(states, "extract");
    if (!waiting) return;
    const before = waiting.pending.tokensDone;
    const answer = waiting.pending.states(states);
    this.#outstanding.advance(waiting, waiting.pending.tokensDone - before);
    this.#outstanding.close(waiting);
    waiting.resolve(answer);
  }

  /** `restart`, or an error to anything but an extract: the child is ending, and its exit settles what was asked. */
  #onError(answer: ErrorAnswer): void {
    const waiting = this.#find(answer, null);
    if (!waiting) return;
    if (waiting.kind !== "extract" || answer.retry === "restart" || answer.kind === "crash") {
      const { kind, rows, retry } = answer;
      const end = retry === "restart" ? "expect" : "terminate";
      this.#fail({ kind, rows, retry, message: plainText(answer.message, 500), end });
      return;
    }
    const done = waiting.pending.error(answer);
    if (!done) return;
    this.#outstanding.close(waiting);
    waiting.resolve(done);
  }

  /** The request that `answer` is for; null where none is and that is no fault. `kind` null: any. */
  #find<Kind extends AnyWaiting["kind"]>(answer: { type: string; id: number }, kind: Kind | null) {
    const waiting = this.#outstanding.find(answer, kind);
    // Once it was asked to stop, an answer on its way is no fault.
    if (!waiting && !this.#end) throw this.#outstanding.faultOf(answer);
    return waiting;
  }

  // --- the watchdog ---

  #arm(): void {
    this.#cancelWatchdog();
    this.#cancelWatchdog = () => {};
    if (!this.usable) return;
    const silence = this.#silence();
    if (!silence) return;
    const { what, sinceMs, limitMs } = silence;
    const expire = () => {
      if (!this.usable) return;
      if (this.#silence()?.sinceMs !== sinceMs) return this.#arm();
      this.#fail({
        kind: "hang",
        message: `${what} for ${Math.round(limitMs / 1000)} s, its limit`,
        end: "terminate",
      });
    };
    // After a pause of this process (SIGSTOP, a sleeping machine) timers run before the pipes are read: read first.
    const read = () => void setImmediate(expire);
    this.#cancelWatchdog = this.#clock.setTimer(read, Math.max(0, sinceMs + limitMs - this.#clock.nowMs()));
  }

  #silence(): Silence | null {
    if (this.#hello) return this.#outstanding.silence();
    return { what: "it did not say hello", sinceMs: this.#startedMs, limitMs: this.#limits.loadMs };
  }

  // --- its end ---

  #breach(fault: ProtocolFault, message: string, rows: readonly number[] = []): void {
    this.#fail({ kind: "protocol", fault, message, rows, end: "kill" });
  }

  /** The first failure is the one reported; a later one may only hasten the end. */
  #fail(failure: {
    kind: FailureKind;
    message: string;
    fault?: ProtocolFault;
    rows?: readonly number[];
    retry?: Retry;
    end: "kill" | "terminate" | "expect";
  }): void {
    if (this.#exit) return;
    const { kind, message, fault = null, rows = [], retry = "restart", end } = failure;
    if (!this.#end) {
      this.#end = { kind, fault, message, rows, retry };
      const level = kind === "stopped" ? "info" : "warn";
      this.#log[level]("engine.failing", { engine: this.label, pid: this.pid, kind, fault, message, end });
    }
    this.#arm();
    if (end === "kill") this.#child.kill();
    else if (end === "terminate") this.#child.terminate();
    else this.#child.expectExit();
  }

  async #untilExit(file: string, signal: AbortSignal | undefined): Promise<EngineExit> {
    const onAbort = () => void this.kill("the run was aborted");
    signal?.addEventListener("abort", onAbort, { once: true });
    const end = await this.#child.exited;
    signal?.removeEventListener("abort", onAbort);
    this.#cancelWatchdog();
    this.#exit = describeExit(end, {
      file,
      ending: this.#end,
      hello: this.#hello,
      saidBye: this.#saidBye,
      stderrTail: this.#stderr.tail(),
    });
    this.#settle(this.#exit);
    return this.#exit;
  }

  #settle(exit: EngineExit): void {
    const level = exit.kind === "stopped" ? "info" : "warn";
    this.#log[level]("engine.exit", {
      engine: this.label,
      pid: this.pid,
      kind: exit.kind,
      code: exit.code,
      signal: exit.signal,
      reason: exit.reason,
    });
    if (!this.#hello) this.#greeted.reject(this.#error(null, exit));
    this.#outstanding.rejectAll((waiting) => this.#error(waiting, exit));
  }

  #error(waiting: AnyWaiting | null, exit: EngineExit): EngineError {
    const asked = waiting?.kind === "extract" ? waiting.pending.rows : [];
    const op = waiting ? OPERATIONS[waiting.kind] : "start engine";
    return exitError(exit, { op, label: this.label, asked, stderrFile: this.#stderrFile });
  }
}

/** As an error names them. */
const OPERATIONS = { load: "load", check: "check", extract: "extract states" } as const;
