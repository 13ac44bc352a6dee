import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { fileURLToPath } from "node:url";
import { getRequestListener, type HttpBindings } from "@hono/node-server";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { Hono } from "hono";
import { z } from "zod";
import { describeError, EXIT, errnoOf, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { type RunCounters, type RunState, StatusDocument } from "../run/status.ts";
import { type Refusal, refusalOf } from "./guard.ts";
import { type History, historyPoint } from "./history.ts";
import { METRICS_CONTENT_TYPE, prometheusText } from "./metrics.ts";
import { readPageFiles } from "./page-files.ts";
import { HEARTBEAT_FRAME, SnapshotStream, type StreamLimits, snapshotFrame } from "./stream.ts";

/** What the run says of itself once a second. */
export interface Published {
  document: StatusDocument;
  counters: RunCounters;
}

export interface ServerOptions {
  /** What is told until the first `publish`. */
  first: Published;
  /** Gains a point with each document published. */
  history: History;
  /** 0: any free one. */
  port: number;
  /** Whether a busy port means the next free one (of 100), or an error. Default true. */
  nextFreePort?: boolean;
  log: Log;
  /** Unix milliseconds. */
  nowMs: () => number;
  /** The built page. Default: `web/` beside this folder's parent, where the build puts it. */
  pageDirectory?: string;
  stream?: StreamLimits;
}

export interface MonitorServer {
  /** "http://127.0.0.1:8080" */
  url: string;
  port: number;
  /** From now on everybody is told this. */
  publish(now: Published): void;
  /** Ends every connection, each stream with the newest document; resolves when the port is free. */
  close(): Promise<void>;
}

const HEARTBEAT_MS = 15_000;
/** A run that has not said anything for longer hangs, whatever its last word was. */
const HEALTHY_AGE_MS_MAX = 15_000;
const PORTS_TRIED_MAX = 100;
const CONNECTIONS_MAX = 1_024;
/** States in which work is being done, or all done: what a load balancer would call ready. */
const READY_STATES: readonly RunState[] = ["running", "degraded", "stalled", "done", "done_with_skips"];

const PAGE_HEADERS = {
  "content-security-policy":
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " +
    "trusted-types 'none'",
  "x-content-type-options": "nosniff",
  "x-frame-options": "DENY",
  "referrer-policy": "no-referrer",
  "cross-origin-opener-policy": "same-origin",
  "cross-origin-resource-policy": "same-origin",
} as const;

/**
 * The read-only monitor on loopback: the page at `/`, the status document at `/api/status`, its schema, stream and
 * history, `/metrics`, `/healthz` and `/readyz`. Throws a RunError where the port cannot be had.
 */
export async function startServer(options: ServerOptions): Promise<MonitorServer> {
  const { history, log, nowMs } = options;
  let news = newsOf(options.first, nowMs());
  const stream = new SnapshotStream(options.stream);
  const app = routes({ ...options, news: () => news, stream });
  const knownPaths = new Set(app.routes.map((route) => route.path));
  const answer = getRequestListener(app.fetch, { overrideGlobalObjects: false });

  const server = createServer(
    {
      headersTimeout: 10_000,
      requestTimeout: 10_000,
      keepAliveTimeout: 5_000,
      connectionsCheckingInterval: 2_000,
    },
    (incoming, outgoing) => {
      for (const [name, value] of Object.entries(PAGE_HEADERS)) outgoing.setHeader(name, value);
      const refusal = refusalOf(incoming, (path) => knownPaths.has(path));
      if (refusal) refuse(outgoing, refusal);
      else void answer(incoming, outgoing);
    },
  );
  server.maxConnections = CONNECTIONS_MAX;
  // A reader that takes nothing for a minute is gone; streams are written to every second and have their own rule.
  server.setTimeout(60_000);
  server.on("clientError", (error, socket) => {
    if (socket.writable) socket.end(rawRefusal(errnoOf(error)));
  });
  const port = await listen(server, options);

  const send = (frame: Buffer) => {
    stream.send(frame).catch((error: unknown) => log.warn("monitor.stream", { error: describeError(error) }));
  };
  history.add(historyPoint(options.first.document, null));
  const heartbeat = setInterval(() => send(HEARTBEAT_FRAME), HEARTBEAT_MS).unref();

  return {
    url: `http://127.0.0.1:${port}`,
    port,
    publish: (published) => {
      history.add(historyPoint(published.document, news.document));
      news = newsOf(published, nowMs());
      send(snapshotFrame(news.json));
    },
    close: async () => {
      clearInterval(heartbeat);
      // How it ended is what an open page should go on showing.
      stream.close(snapshotFrame(news.json));
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      // Streams get the turn they need to say goodbye; nothing else is worth waiting for.
      setImmediate(() => server.closeAllConnections());
      await closed;
    },
  };
}

/** The newest that was published, serialised once for everyone who asks for it. */
interface News extends Published {
  json: Buffer<ArrayBuffer>;
  /** When it came. */
  atMs: number;
}

function newsOf(published: Published, atMs: number): News {
  return { ...published, json: Buffer.from(JSON.stringify(published.document)), atMs };
}

interface RouteOptions extends Pick<ServerOptions, "history" | "log" | "nowMs" | "pageDirectory"> {
  news: () => News;
  stream: SnapshotStream;
}

function routes({ history, log, nowMs, pageDirectory, news, stream }: RouteOptions) {
  const app = new Hono<{ Bindings: HttpBindings }>();
  const files = readPageFiles(pageDirectory ?? fileURLToPath(new URL("../web/", import.meta.url)));
  const schemaJson = JSON.stringify(z.toJSONSchema(StatusDocument));
  const json = (body: string | Buffer<ArrayBuffer>, status = 200) =>
    new Response(body, {
      status,
      headers: { "content-type": "application/json; charset=utf-8", "cache-control": "no-store" },
    });
  const problem = (status: number, error: string) => json(JSON.stringify({ error }), status);

  if (!files.has("/")) {
    app.get("/", () =>
      problem(503, "the page is not built; /api/status works (npm run build makes the page)"),
    );
  }
  for (const [path, file] of files) {
    app.get(path, ({ req }) => {
      const headers = new Headers({
        "content-type": file.contentType,
        "cache-control": file.cacheControl,
        etag: file.etag,
        vary: "accept-encoding",
      });
      if (req.header("if-none-match")?.includes(file.etag))
        return new Response(null, { status: 304, headers });
      const gzip = /\bgzip\b/.test(req.header("accept-encoding") ?? "");
      if (gzip) headers.set("content-encoding", "gzip");
      return new Response(new Uint8Array(gzip ? file.gzip : file.plain), { headers });
    });
  }

  app.get("/api/status", () => json(news().json));
  app.get("/api/schema.json", () => json(schemaJson));
  app.get("/api/history", ({ req }) => {
    const from = req.query("from") ?? "0";
    if (!/^\d{1,12}(?:\.\d{1,6})?$/.test(from)) {
      return problem(400, "expected from to be a time in Unix seconds, such as ?from=1764547200");
    }
    return json(JSON.stringify({ now: nowMs() / 1_000, ...history.since(Number(from)) }));
  });
  app.get("/api/events", ({ req, env }) => {
    const { outgoing } = env;
    outgoing.writeHead(200, {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-store",
      "x-accel-buffering": "no",
    });
    if (req.method === "HEAD") outgoing.end();
    else stream.add(outgoing, snapshotFrame(news().json));
    return RESPONSE_ALREADY_SENT;
  });
  app.get("/metrics", () => {
    const { document, counters } = news();
    return new Response(prometheusText(document, counters), {
      headers: { "content-type": METRICS_CONTENT_TYPE, "cache-control": "no-store" },
    });
  });
  app.get("/healthz", () => {
    const { document, atMs } = news();
    const ageMs = nowMs() - atMs;
    const ok = ageMs <= HEALTHY_AGE_MS_MAX;
    const said = { ok, state: document.run.state, silent_s: Math.max(0, Math.round(ageMs / 1_000)) };
    return json(JSON.stringify(said), ok ? 200 : 503);
  });
  app.get("/readyz", () => {
    const { state } = news().document.run;
    const ready = READY_STATES.includes(state);
    return json(JSON.stringify({ ready, state }), ready ? 200 : 503);
  });
  app.onError((error) => {
    log.error("monitor.error", { error: describeError(error) });
    return problem(500, "the monitor failed to answer; the run is not harmed");
  });
  return app;
}

/** Tries `port`, then the next ones. The run prints what it got. */
async function listen(server: Server, { port, nextFreePort = true }: ServerOptions): Promise<number> {
  for (let tried = port; ; tried += 1) {
    try {
      return await listenOn(server, tried);
    } catch (error) {
      const another = nextFreePort && tried + 1 < Math.min(port + PORTS_TRIED_MAX, 65_536);
      if (another && (errnoOf(error) === "EADDRINUSE" || errnoOf(error) === "EACCES")) continue;
      throw new RunError({
        op: "open monitor",
        subject: `127.0.0.1:${tried}`,
        message: `the port cannot be used: ${describeError(error)}`,
        safe: "nothing was started",
        hint: "choose another with --port, or 0 for any free one",
        exit: EXIT.configuration,
        cause: error,
      });
    }
  }
}

function listenOn(server: Server, port: number): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen({ port, host: "127.0.0.1" }, () => {
      server.off("error", reject);
      const address = server.address();
      resolve(typeof address === "object" && address ? address.port : port);
    });
  });
}

/** The connection ends too: whatever body was on its way is not read. */
function refuse(outgoing: ServerResponse<IncomingMessage>, { status, message, allow }: Refusal): void {
  if (allow) outgoing.setHeader("allow", allow);
  outgoing.writeHead(status, {
    "content-type": "application/json; charset=utf-8",
    "cache-control": "no-store",
    connection: "close",
  });
  outgoing.end(JSON.stringify({ error: message }));
}

/** The answer to bytes that Node's parser gave up on: no request object exists to answer through. */
function rawRefusal(code: string | undefined): string {
  const timedOut = code === "ERR_HTTP_REQUEST_TIMEOUT";
  const body = JSON.stringify({
    error: timedOut ? "the request took too long" : "expected a small HTTP request",
  });
  return [
    `HTTP/1.1 ${timedOut ? "408 Request Timeout" : "400 Bad Request"}`,
    "content-type: application/json; charset=utf-8",
    `content-length: ${Buffer.byteLength(body)}`,
    "connection: close",
    "",
    body,
  ].join("\r\n");
}
