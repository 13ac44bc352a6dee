import { EXIT } from "../base/errors.ts";
import { type Log, plainText } from "../base/log.ts";
import { Child, type ChildEnd, type EngineCommand } from "./child.ts";
import { ChildLog } from "./child-log.ts";
import { type Clock, realClock } from "./clock.ts";
import { EngineError, type FailureKind, Fault, type ProtocolFault, type Retry } from "./engine-error.ts";
import { type ExtractAnswer, PendingExtract } from "./pending-extract.ts";
import {
  Answer,
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
import { DEFAULT_LIMITS, type EngineLimits, Pace } from "./watchdog.ts";

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

export interface EngineExit {
  code: number | null;
  signal: NodeJS.Signals | null;
  /** One sentence. */
  reason: string;
  kind: FailureKind;
  fault: ProtocolFault | null;
  killedByUs: boolean;
  /** It took its leave as the protocol has it. */
  saidBye: boolean;
  stderrTail: string[];
}

interface Waiting<Outcome> {
  id: number;
  resolve: (outcome: Outcome) => void;
  reject: (error: EngineError) => void;
  /** When it was sent, became the oldest, or last made progress: what the watchdog counts from. */
  sinceMs: number;
}
interface WaitingLoad extends Waiting<Loaded> {
  kind: "load";
}
interface WaitingCheck extends Waiting<Checked> {
  kind: "check";
}
interface WaitingExtract extends Waiting<ExtractAnswer> {
  kind: "extract";
  pending: PendingExtract;
  onProgress: ((tokensDone: number, tokensTotal: number) => void) | undefined;
}
type AnyWaiting = WaitingLoad | WaitingCheck | WaitingExtract;

/**
 * The parent's side of one engine: one child process in a process group of its own, from `start` to `exited`.
 * Every line from it is checked; whatever breaks the protocol, or is silent for too long, is killed. When that
 * happens, and when the child dies by itself, the outstanding requests reject with an `EngineError`, but only
 * once the child has exited: until then it may still write into their files.
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
  readonly #pace: Pace;
  readonly #waiting = new Map<number, AnyWaiting>();
  readonly #startedMs: number;
  #greeted!: { resolve: (hello: Hello) => void; reject: (error: EngineError) => void };
  #hello: Hello | null = null;
  #loaded: Loaded | null = null;
  #nextId = 1;
  /** The first thing that went wrong or was asked of it; what its end is reported as. */
  #end: {
    kind: FailureKind;
    fault: ProtocolFault | null;
    message: string;
    rows: readonly number[];
    retry: Retry;
  } | null = null;
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
    this.#log = log;
    this.#clock = options.clock ?? realClock;
    this.#limits = { ...DEFAULT_LIMITS, ...options.limits };
    this.#pace = new Pace(this.#limits);
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
    this.exited = this.#untilExit(command, signal);
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

  /** By the running median of its forwards; null before the first. */
  get tokensPerSecond(): number | null {
    return this.#pace.tokensPerSecond;
  }

  stderrTail(): string[] {
    return this.#stderr.tail();
  }

  /** Resolves with the model's facts. Rejects (the child is gone) also where the child answers with an error. */
  load(request: Omit<LoadRequest, "type" | "id">): Promise<Loaded> {
    return new Promise((resolve, reject) => {
      const id = this.#nextId++;
      this.#ask({ kind: "load", id, resolve, reject, sinceMs: 0 }, { ...request, type: "load", id });
    });
  }

  /** Several may be outstanding. Rows that a living child fails are in the answer; it rejects only at a death. */
  extract(
    request: Omit<ExtractRequest, "type" | "id">,
    onProgress?: (tokensDone: number, tokensTotal: number) => void,
  ): Promise<ExtractAnswer> {
    return new Promise((resolve, reject) => {
      const id = this.#nextId++;
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
      const id = this.#nextId++;
      this.#ask({ kind: "check", id, resolve, reject, sinceMs: 0 }, { ...request, type: "check", id });
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
    waiting.sinceMs = this.#clock.nowMs();
    this.#waiting.set(waiting.id, waiting);
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
    this.#close(waiting);
    waiting.resolve(loaded);
  }

  #onChecked(checked: Checked): void {
    const waiting = this.#find(checked, "check");
    if (!waiting) return;
    this.#close(waiting);
    waiting.resolve(checked);
  }

  #onProgress(progress: Progress): void {
    const waiting = this.#find(progress, null);
    if (waiting?.kind === "check") waiting.sinceMs = this.#clock.nowMs();
    if (waiting?.kind !== "extract") return;
    this.#advance(waiting, waiting.pending.progress(progress));
    waiting.onProgress?.(waiting.pending.tokensDone, waiting.pending.tokensTotal);
  }

  #onStates(states: States): void {
    const waiting = this.#find(states, "extract");
    if (!waiting) return;
    const before = waiting.pending.tokensDone;
    const answer = waiting.pending.states(states);
    this.#advance(waiting, waiting.pending.tokensDone - before);
    this.#close(waiting);
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
    this.#close(waiting);
    waiting.resolve(done);
  }

  /** The request that `answer` is for; null where none is and that is no fault. `kind` null: any. */
  #find<Kind extends AnyWaiting["kind"]>(answer: { type: string; id: number }, kind: Kind | null) {
    const waiting = this.#waiting.get(answer.id);
    if (waiting && (kind === null || waiting.kind === kind)) {
      return waiting as Extract<AnyWaiting, { kind: Kind }>;
    }
    if (waiting) {
      throw new Fault(
        "wrong-answer",
        `request ${answer.id} is a ${waiting.kind}, found ${answer.type} for it`,
      );
    }
    // Once it was asked to stop, an answer on its way is no fault.
    if (this.#end) return null;
    if (answer.id > 0 && answer.id < this.#nextId) {
      const message = `request ${answer.id} was answered already, found ${answer.type} for it`;
      throw new Fault("answered-twice", message);
    }
    throw new Fault("wrong-id", `request ${answer.id} was never sent, found ${answer.type} for it`);
  }

  // --- the watchdog ---

  #oldest(): AnyWaiting | undefined {
    return this.#waiting.values().next().value;
  }

  /** `waiting` got further by `tokens`. */
  #advance(waiting: WaitingExtract, tokens: number): void {
    if (tokens === 0) return;
    const nowMs = this.#clock.nowMs();
    this.#pace.did(tokens);
    if (waiting === this.#oldest()) this.#pace.closeInterval(nowMs - waiting.sinceMs);
    waiting.sinceMs = nowMs;
  }

  /** The request is answered; the next oldest is counted from now, not from when it was sent. */
  #close(waiting: AnyWaiting): void {
    const wasOldest = waiting === this.#oldest();
    this.#waiting.delete(waiting.id);
    const oldest = this.#oldest();
    if (wasOldest && oldest) oldest.sinceMs = this.#clock.nowMs();
  }

  #arm(): void {
    this.#cancelWatchdog();
    this.#cancelWatchdog = () => {};
    if (!this.usable) return;
    const [what, sinceMs, limitMs] = this.#patience();
    if (limitMs === null) return;
    const expire = () => {
      if (!this.usable) return;
      if (this.#patience()[1] !== sinceMs) return this.#arm();
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

  #patience(): [what: string, sinceMs: number, limitMs: number | null] {
    if (!this.#hello) return ["it did not say hello", this.#startedMs, this.#limits.loadMs];
    const oldest = this.#oldest();
    if (!oldest) return ["", 0, null];
    switch (oldest.kind) {
      case "load":
        return ["it was loading", oldest.sinceMs, this.#limits.loadMs];
      case "check":
        return ["it was silent in a check", oldest.sinceMs, this.#limits.firstForwardMs];
      case "extract":
        return ["it made no progress", oldest.sinceMs, this.#pace.limitMs(oldest.pending.longestTokens)];
    }
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

  async #untilExit(command: EngineCommand, signal: AbortSignal | undefined): Promise<EngineExit> {
    const onAbort = () => void this.kill("the run was aborted");
    signal?.addEventListener("abort", onAbort, { once: true });
    const end = await this.#child.exited;
    signal?.removeEventListener("abort", onAbort);
    this.#cancelWatchdog();
    this.#exit = this.#describeExit(command, end);
    this.#settle(this.#exit);
    return this.#exit;
  }

  #describeExit(command: EngineCommand, end: ChildEnd): EngineExit {
    const { code, signal, killedByUs, spawnError } = end;
    const facts = { code, signal, killedByUs, saidBye: this.#saidBye, stderrTail: this.#stderr.tail() };
    if (spawnError) {
      const reason = `${command.file} could not be started: ${spawnError.message}`;
      return { ...facts, reason, kind: "start", fault: null };
    }
    if (this.#end)
      return { ...facts, reason: this.#end.message, kind: this.#end.kind, fault: this.#end.fault };
    const ended = signal ? `it was ended by ${signal}` : `it exited with code ${code}`;
    if (signal === "SIGKILL" && this.#onCpu()) {
      // The kernel's out-of-memory killer leaves no other trace that a parent can see.
      return {
        ...facts,
        reason: `${ended}, as the kernel does when memory runs out`,
        kind: "oom",
        fault: null,
      };
    }
    if (!this.#hello) {
      return { ...facts, reason: `${ended} before its hello`, kind: "start", fault: "hello-missing" };
    }
    const reason = this.#saidBye ? `${ended} with a bye that nobody asked for` : ended;
    return { ...facts, reason, kind: "crash", fault: null };
  }

  #onCpu(): boolean {
    return this.#hello === null || this.#hello.devices.every((device) => device.uuid === null);
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
    for (const waiting of this.#waiting.values()) waiting.reject(this.#error(waiting, exit));
    this.#waiting.clear();
  }

  #error(waiting: AnyWaiting | null, exit: EngineExit): EngineError {
    const own = waiting?.kind === "extract" ? new Set(waiting.pending.rows) : new Set<number>();
    const lastWords = exit.stderrTail.at(-1);
    return new EngineError({
      op: waiting ? `${waiting.kind === "extract" ? "extract states" : waiting.kind}` : "start engine",
      subject: this.label,
      message: `engine ${this.label}: ${exit.reason}${lastWords ? `; its last words: ${lastWords}` : ""}`,
      hint: "the engine's log has its whole stderr",
      kind: exit.kind,
      fault: exit.fault,
      rows: (this.#end?.rows ?? []).filter((row) => own.has(row)),
      retry: this.#end?.retry ?? (exit.kind === "oom" ? "smaller" : "restart"),
      // A program that is not there is not there the next time either.
      exit: exit.kind === "start" && exit.fault === null ? EXIT.configuration : EXIT.engine,
      remedy: "retry",
    });
  }
}

function parseAnswer(line: string): Answer {
  let json: unknown;
  try {
    json = JSON.parse(line);
  } catch {
    throw new Fault("not-json", `expected a line of JSON as an answer, found "${plainText(line, 120)}"`);
  }
  const parsed = Answer.safeParse(json);
  if (parsed.success) return parsed.data;
  const issue = parsed.error.issues[0];
  const where = `${issue?.path.join(".") || "type"}: ${issue?.message}`;
  const found = `found "${plainText(line, 120)}" (${where})`;
  throw new Fault("not-a-message", `expected a message of the engine protocol, ${found}`);
}
