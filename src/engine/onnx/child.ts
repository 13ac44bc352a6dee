/**
 * The onnx engine's process: the protocol on its main thread, the computing on a worker thread.
 * Arguments: the descriptors to read requests from and write answers to (default 0 and 1; see command.ts).
 */
import { createRequire } from "node:module";
import { Socket } from "node:net";
import { cpus, totalmem } from "node:os";
import { Worker } from "node:worker_threads";
import { LineReader } from "../lines.ts";
import { type Answer, LINE_BYTES_MAX, Request } from "../protocol.ts";

// Whatever prints without asking, in this thread or the other, prints to stderr: stdout may be the answers'.
process.stdout.write = process.stderr.write.bind(process.stderr) as typeof process.stdout.write;

const ALIVE_MS = 5_000;
/** sysexits' EX_SOFTWARE: the parent takes it for a crash. */
const EXIT_CRASH = 70;

const [requestFd, answerFd] = [Number(process.argv[2] ?? 0), Number(process.argv[3] ?? 1)];
const requests = new Socket({ fd: requestFd, readable: true, writable: false });
const answers = new Socket({ fd: answerFd, readable: false, writable: true });
const worker = new Worker(new URL("./worker.js", import.meta.url));

/** What is not answered yet, and how many rows of it. */
const outstanding = new Map<number, { type: "load" | "extract" | "check"; rows: number }>();
let isImported = false;

// Nobody reads the answers any more: the same as the end of requests.
answers.on("error", endNow);
send({
  type: "hello",
  proto: 1,
  pid: process.pid,
  engine: "onnx",
  versions: { node: process.versions.node, onnxruntime: onnxRuntimeVersion() },
  devices: [{ uuid: null, name: cpus()[0]?.model.trim() ?? "cpu", bytes: totalmem() }],
});

const alive = setInterval(() => send({ type: "alive", stage: stage() }), ALIVE_MS);
worker.once("online", () => {
  isImported = true;
});
worker.on("message", (answer: Answer) => {
  settle(answer);
  send(answer);
});
worker.on("error", (error) => {
  console.error(error);
  for (const id of outstanding.keys()) {
    send({
      type: "error",
      id,
      rows: [],
      kind: "crash",
      errno: null,
      message: error.message,
      retry: "restart",
    });
  }
  end(EXIT_CRASH);
});

const lines = new LineReader(LINE_BYTES_MAX, onLine);
requests.on("data", (chunk: Buffer) => {
  if (!lines.push(chunk)) protocolFault(`a request line has over ${LINE_BYTES_MAX} bytes`);
});
requests.on("end", endNow);
requests.on("error", endNow);

function onLine(line: string): void {
  const parsed = Request.safeParse(parseJson(line));
  if (!parsed.success) {
    protocolFault(`not a request: ${line.slice(0, 200)}`);
    return;
  }
  const request = parsed.data;
  if (request.type === "shutdown") {
    send({ type: "bye" });
    end(0);
    return;
  }
  const rows = request.type === "extract" ? request.samples.length : 1;
  outstanding.set(request.id, { type: request.type, rows });
  worker.postMessage(request);
}

function parseJson(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

/** An `error` that names rows leaves the others of its request open. */
function settle(answer: Answer): void {
  if (!("id" in answer) || answer.type === "progress") return;
  const open = outstanding.get(answer.id);
  if (!open) return;
  open.rows -= answer.type === "error" && answer.rows.length > 0 ? answer.rows.length : open.rows;
  if (open.rows <= 0) outstanding.delete(answer.id);
}

function stage(): "import" | "load" | "extract" | "idle" {
  const types = [...outstanding.values()].map((open) => open.type);
  if (!isImported) return "import";
  if (types.includes("load")) return "load";
  return types.length > 0 ? "extract" : "idle";
}

function send(answer: Answer): void {
  answers.write(`${JSON.stringify(answer)}\n`);
}

function protocolFault(message: string): void {
  console.error(message);
  end(EXIT_CRASH);
}

/** Says what is still to be said, then ends; a forward in progress is waited for, as process.exit does. */
function end(code: number): void {
  clearInterval(alive);
  requests.removeAllListeners();
  answers.end(() => process.exit(code));
}

/** The parent is gone: nobody is left to answer, and a forward of seconds is not waited for. */
function endNow(): void {
  if (outstanding.size > 0) process.kill(process.pid, "SIGKILL");
  process.exit(0);
}

function onnxRuntimeVersion(): string {
  const { version } = createRequire(import.meta.url)("onnxruntime-node/package.json") as { version: string };
  return version;
}
