/**
 * The vllm engine's process: the protocol and the HTTP requests on its main thread, the numbers on a worker thread.
 * Arguments: the descriptors to read requests from and write answers to (see command.ts), and a VllmTarget as JSON.
 */
import { Socket } from "node:net";
import { LineReader } from "../lines.ts";
import { type Answer, LINE_BYTES_MAX, Request } from "../protocol.ts";
import type { VllmTarget } from "./command.ts";
import { Copier } from "./copier.ts";
import { VllmEngine } from "./engine.ts";

// Whatever prints without asking, in this thread or the other, prints to stderr: stdout may be the answers'.
process.stdout.write = process.stderr.write.bind(process.stderr) as typeof process.stdout.write;

const ALIVE_MS = 5_000;
/** sysexits' EX_SOFTWARE: the parent takes it for a crash. */
const EXIT_CRASH = 70;

const requests = new Socket({ fd: Number(process.argv[2] ?? 0), readable: true, writable: false });
const answers = new Socket({ fd: Number(process.argv[3] ?? 1), readable: false, writable: true });
const target = JSON.parse(process.argv[4] ?? "{}") as VllmTarget;

/** What is not answered yet, and how many rows of it. */
const outstanding = new Map<number, { type: "load" | "extract" | "check"; rows: number }>();
let isEnding = false;

// Nobody reads the answers any more: the same as the end of requests.
answers.on("error", endNow);
send({
  type: "hello",
  proto: 1,
  pid: process.pid,
  engine: "vllm",
  versions: { node: process.versions.node },
  devices: [
    { uuid: null, name: "url" in target ? `vLLM at ${target.url}` : "vLLM started here", bytes: null },
  ],
});
const alive = setInterval(() => send({ type: "alive", stage: stage() }), ALIVE_MS);

const copier = new Copier(crash);
const engine = new VllmEngine({
  target,
  send,
  onCrash: crash,
  copy: (job) => copier.copy(job),
  devices: "url" in target ? [] : (process.env.CUDA_VISIBLE_DEVICES ?? "").split(",").filter(Boolean),
  pid: process.pid,
  nowMs: () => performance.now(),
});

const lines = new LineReader(LINE_BYTES_MAX, onLine);
requests.on("data", (chunk: Buffer) => {
  if (!lines.push(chunk)) crash(new Error(`a request line has over ${LINE_BYTES_MAX} bytes`));
});
requests.on("end", endNow);
requests.on("error", endNow);
process.on("SIGTERM", () => void end(EXIT_CRASH));

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
  engine.receive(request);
}

function parseJson(line: string): unknown {
  try {
    return JSON.parse(line);
  } catch {
    return undefined;
  }
}

function stage(): "load" | "extract" | "idle" {
  const types = [...outstanding.values()].map((open) => open.type);
  if (types.includes("load")) return "load";
  return types.length > 0 ? "extract" : "idle";
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

/** Tells it for every request that is open; the parent starts this child anew. */
function crash(error: unknown): void {
  if (isEnding) return;
  const message = error instanceof Error ? error.message : String(error);
  console.error(error instanceof Error ? error.stack : message);
  // The last line is what a person is shown.
  console.error(message);
  for (const id of [...outstanding.keys()]) {
    send({ type: "error", id, rows: [], kind: "crash", errno: null, message, retry: "restart" });
  }
  void end(EXIT_CRASH);
}

/** Says what is still to be said, ends a server that was started here, and exits. What is open is dropped. */
async function end(code: number): Promise<void> {
  if (isEnding) return;
  isEnding = true;
  clearInterval(alive);
  requests.removeAllListeners();
  requests.on("end", endNow);
  await engine.stop();
  if (code === 0) send({ type: "bye" });
  answers.end(() => process.exit(code));
}

/** The parent is gone: nobody is left to answer. A server started here ends of its closed leash (server.ts). */
function endNow(): void {
  process.exit(0);
}
