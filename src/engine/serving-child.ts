import { Socket } from "node:net";
import { LineReader } from "./lines.ts";
import { type Answer, LINE_BYTES_MAX, Request } from "./protocol.ts";

type WorkRequest = Exclude<Request, { type: "shutdown" }>;
type Hello = Extract<Answer, { type: "hello" }>;
type Stage = Extract<Answer, { type: "alive" }>["stage"];

/** An engine, as the process around it sees it. */
export interface Served {
  hello: Pick<Hello, "engine" | "versions" | "devices">;
  /** Answers come by `send`, from now or later. */
  receive: (request: WorkRequest) => void;
  /** False as long as what it runs on is still being loaded. Default: true from the start. */
  isImported?: () => boolean;
  /** Resolves when no thread is in native code: an exit that cuts it off there may abort. A SIGTERM does not wait for it. */
  rest?: () => Promise<void>;
  /** What must be ended before this process may; a SIGTERM waits for it too. Default: nothing. */
  stop?: () => Promise<void>;
}

export interface ServingChild {
  send: (answer: Answer) => void;
  /** Tells it for every request that is open, and ends the process: the parent starts another. A text is told without a trace. */
  crash: (error: unknown) => void;
}

const ALIVE_MS = 5_000;
/** sysexits' EX_SOFTWARE: the parent takes it for a crash. */
const EXIT_CRASH = 70;

/**
 * The child's end of the engine protocol, for engines that run in Node: reads requests from one descriptor and writes
 * answers to another (the process's first two arguments, default 0 and 1; see command.ts), beats, and ends the process:
 * asked to, at the end of the requests, and at a crash. Called once, by an engine's child.ts.
 */
export function serve(served: Served): ServingChild {
  // Whatever prints without asking, in this thread or another, prints to stderr: stdout may be the answers'.
  process.stdout.write = process.stderr.write.bind(process.stderr) as typeof process.stdout.write;
  const requests = new Socket({ fd: Number(process.argv[2] ?? 0), readable: true, writable: false });
  const answers = new Socket({ fd: Number(process.argv[3] ?? 1), readable: false, writable: true });
  /** What is not answered yet, and how many rows of it. */
  const outstanding = new Map<number, { type: WorkRequest["type"]; rows: number }>();
  let isEnding = false;

  // Nobody reads the answers any more: the same as the end of requests.
  answers.on("error", endNow);
  send({ type: "hello", proto: 1, pid: process.pid, ...served.hello });
  const alive = setInterval(() => send({ type: "alive", stage: stage() }), ALIVE_MS);
  const lines = new LineReader(LINE_BYTES_MAX, onLine);
  requests.on("data", (chunk: Buffer) => {
    if (!lines.push(chunk)) crash(new Error(`a request line has over ${LINE_BYTES_MAX} bytes`));
  });
  requests.on("end", endNow);
  requests.on("error", endNow);
  if (served.stop) process.on("SIGTERM", () => void end(EXIT_CRASH));
  return { send, crash };

  function onLine(line: string): void {
    const parsed = Request.safeParse(parseJson(line));
    if (!parsed.success) {
      crash(new Error(`not a request: ${line.slice(0, 200)}`));
      return;
    }
    const request = parsed.data;
    if (request.type === "shutdown") {
      void end(0);
      return;
    }
    const rows = request.type === "extract" ? request.samples.length : 1;
    outstanding.set(request.id, { type: request.type, rows });
    served.receive(request);
  }

  function send(answer: Answer): void {
    if (isEnding && answer.type !== "bye") return;
    settle(answer);
    answers.write(`${JSON.stringify(answer)}\n`);
  }

  /** An `error` that names rows leaves the others of its request open. */
  function settle(answer: Answer): void {
    if (!("id" in answer) || answer.type === "progress") return;
    const open = outstanding.get(answer.id);
    if (!open) return;
    open.rows -= answer.type === "error" && answer.rows.length > 0 ? answer.rows.length : open.rows;
    if (open.rows <= 0) outstanding.delete(answer.id);
  }

  function stage(): Stage {
    const types = [...outstanding.values()].map((open) => open.type);
    if (served.isImported?.() === false) return "import";
    if (types.includes("load")) return "load";
    return types.length > 0 ? "extract" : "idle";
  }

  function crash(error: unknown): void {
    if (isEnding) return;
    const message = error instanceof Error ? error.message : String(error);
    if (error instanceof Error) console.error(error.stack);
    // The last line is what a person is shown.
    console.error(message);
    for (const id of [...outstanding.keys()]) {
      send({ type: "error", id, rows: [], kind: "crash", errno: null, message, retry: "restart" });
    }
    void end(EXIT_CRASH);
  }

  /** Says what is still to be said, then ends. */
  async function end(code: number): Promise<void> {
    if (isEnding) return;
    isEnding = true;
    clearInterval(alive);
    requests.removeAllListeners();
    requests.on("end", endNow);
    await served.rest?.();
    await served.stop?.();
    if (code === 0) send({ type: "bye" });
    answers.end(() => process.exit(code));
  }

  /** The parent is gone: nobody is left to answer, and work of seconds is not waited for. */
  function endNow(): void {
    if (outstanding.size > 0 && !isEnding) process.kill(process.pid, "SIGKILL");
    process.exit(0);
  }
}

function parseJson(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}
