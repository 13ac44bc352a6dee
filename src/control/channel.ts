import { randomBytes, timingSafeEqual } from "node:crypto";
import { connect, createServer, type Socket } from "node:net";
import { z } from "zod";
import { describeError, EXIT, RunError } from "../base/errors.ts";
import { UPLOADS_MAX } from "../base/limits.ts";

/**
 * The control channel of a living supervisor: newline JSON over an abstract unix socket, which Linux drops with the
 * process. Abstract sockets have no permissions, so each request carries the token from the 0600 supervisor.json.
 */

/** Requests are a few settings; a longer line is not from us. */
const REQUEST_BYTES_MAX = 64 * 1024;
/** A status document of a large run is well under a megabyte. */
const ANSWER_BYTES_MAX = 16 * 2 ** 20;
const IDLE_MS_MAX = 10_000;
/** A person and a few scripts; more is a loop gone wrong. */
const CONNECTIONS_MAX = 32;

export const UploadSettings = z.strictObject({
  uploads: z.union([z.literal("auto"), z.number().int().min(1).max(UPLOADS_MAX)]).optional(),
  inflightBytes: z.number().int().positive().optional(),
});
export type UploadSettings = z.infer<typeof UploadSettings>;

export const ControlRequest = z.discriminatedUnion("verb", [
  z.strictObject({ verb: z.literal("status") }),
  z.strictObject({ verb: z.literal("set"), settings: UploadSettings }),
  z.strictObject({ verb: z.literal("stop"), reason: z.string().max(200) }),
]);
export type ControlRequest = z.infer<typeof ControlRequest>;

const Envelope = z.strictObject({ token: z.string(), request: z.unknown() });

const ControlAnswer = z.discriminatedUnion("ok", [
  z.object({ ok: z.literal(true), result: z.unknown() }),
  z.object({ ok: z.literal(false), message: z.string(), hint: z.string().optional() }),
]);
type ControlAnswer = z.infer<typeof ControlAnswer>;

/** What the supervisor does for each verb; the results travel as JSON. */
export interface ControlHandlers {
  status(): unknown;
  set(settings: UploadSettings): unknown;
  stop(reason: string): unknown;
}

export interface ControlServer {
  socket: string;
  token: string;
  close(): Promise<void>;
}

/** Listens on a fresh abstract socket. Handlers may throw; the caller gets the message, the server lives on. */
export async function serveControl(handlers: ControlHandlers): Promise<ControlServer> {
  const socket = `forebay-control-${randomBytes(8).toString("hex")}`;
  const token = randomBytes(32).toString("hex");
  const open = new Set<Socket>();
  // Half open, so that a caller who has said all still gets the answer.
  const server = createServer({ allowHalfOpen: true }, (connection) => {
    open.add(connection);
    connection.on("close", () => open.delete(connection));
    answerOne(connection, token, handlers);
  });
  server.maxConnections = CONNECTIONS_MAX;
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen(`\0${socket}`, resolve);
  });
  return {
    socket,
    token,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        for (const connection of open) connection.destroy();
      }),
  };
}

/** One request to the supervisor, its result. Throws (retry later) where nobody answers. */
export function askSupervisor(
  target: { socket: string; token: string },
  request: ControlRequest,
): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const fail = (message: string, hint: string, cause?: unknown) => {
      connection.destroy();
      reject(
        new RunError({
          op: `ask supervisor to ${request.verb}`,
          subject: "control socket",
          message,
          safe: "the run goes on as it was",
          hint,
          exit: EXIT.retryLater,
          cause,
        }),
      );
    };
    const connection = connect(`\0${target.socket}`);
    connection.setTimeout(IDLE_MS_MAX, () => fail("no answer within 10 s", "look with forebay logs"));
    connection.on("error", (cause) => fail("the supervisor does not answer", "try again in a moment", cause));
    connection.on("connect", () => {
      connection.write(`${JSON.stringify({ token: target.token, request })}\n`);
    });
    readLine(connection, ANSWER_BYTES_MAX, (line) => {
      const answer = parseAnswer(line);
      if (answer?.ok) {
        connection.destroy();
        resolve(answer.result);
      } else if (answer) {
        fail(answer.message, answer.hint ?? "look with forebay status");
      } else {
        fail("expected one line of JSON, found something else", "is another version of Forebay running?");
      }
    });
  });
}

function answerOne(connection: Socket, token: string, handlers: ControlHandlers): void {
  connection.setTimeout(IDLE_MS_MAX, () => connection.destroy());
  // A caller that goes away in the middle is its own business.
  connection.on("error", () => connection.destroy());
  readLine(connection, REQUEST_BYTES_MAX, (line) => {
    void answerLine(line, token, handlers).then((answer) => connection.end(`${JSON.stringify(answer)}\n`));
  });
}

async function answerLine(
  line: string | null,
  token: string,
  handlers: ControlHandlers,
): Promise<ControlAnswer> {
  const envelope = Envelope.safeParse(parseJson(line));
  if (!envelope.success)
    return { ok: false, message: "expected one line of JSON with a token and a request" };
  if (!sameText(envelope.data.token, token)) {
    return { ok: false, message: "wrong token", hint: "the run directory names the right one; is it yours?" };
  }
  const request = ControlRequest.safeParse(envelope.data.request);
  if (!request.success) return { ok: false, message: z.prettifyError(request.error) };
  try {
    return { ok: true, result: (await handle(request.data, handlers)) ?? null };
  } catch (error) {
    return {
      ok: false,
      message: describeError(error),
      hint: error instanceof RunError ? error.hint : undefined,
    };
  }
}

function handle(request: ControlRequest, handlers: ControlHandlers): unknown {
  switch (request.verb) {
    case "status":
      return handlers.status();
    case "set":
      return handlers.set(request.settings);
    case "stop":
      return handlers.stop(request.reason);
  }
}

/** Calls back once: with the first line, or with null where it is over the limit or never ends. */
function readLine(connection: Socket, bytesMax: number, callback: (line: string | null) => void): void {
  const chunks: Buffer[] = [];
  let bytes = 0;
  let done = false;
  const finish = (line: string | null) => {
    if (done) return;
    done = true;
    callback(line);
  };
  connection.on("data", (chunk: Buffer) => {
    if (done) return;
    const end = chunk.indexOf(10);
    chunks.push(end < 0 ? chunk : chunk.subarray(0, end));
    bytes += chunk.length;
    if (bytes > bytesMax) finish(null);
    else if (end >= 0) finish(Buffer.concat(chunks).toString("utf8"));
  });
  connection.on("end", () => finish(null));
}

function parseAnswer(line: string | null): ControlAnswer | null {
  const answer = ControlAnswer.safeParse(parseJson(line));
  return answer.success ? answer.data : null;
}

function parseJson(line: string | null): unknown {
  try {
    return line === null ? null : JSON.parse(line);
  } catch {
    return null;
  }
}

function sameText(a: string, b: string): boolean {
  const [left, right] = [Buffer.from(a), Buffer.from(b)];
  return left.length === right.length && timingSafeEqual(left, right);
}
