import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import { fileURLToPath } from "node:url";
import { getRequestListener, type HttpBindings } from "@hono/node-server";
import { RESPONSE_ALREADY_SENT } from "@hono/node-server/utils/response";
import { Hono } from "hono";
import { z } from "zod";
import { describeError, EXIT, errnoOf, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { type RunState, StatusDocument, type StatusSource } from "../run/status.ts";
import { type Refusal, refusalOf } from "./guard.ts";
import { type History, historyPoint } from "./history.ts";
import { METRICS_CONTENT_TYPE, prometheusText } from "./metrics.ts";
import { readPageFiles } from "./page-files.ts";
import { HEARTBEAT_FRAME, SnapshotStream, type StreamLimits, snapshotFrame } from "./stream.ts";

export interface MonitorOptions {
  source: StatusSource;
  /** Filled by the monitor, a point each second. */
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
  /** Between snapshots of the stream and points of the history. Default 1,000. */
  tickMs?: number;
  stream?: StreamLimits;
}

export interface Monitor {
  /** "http://127.0.0.1:8080" */
  url: string;
  port: number;
  /** Ends every connection; resolves when the port is free. */
  close(): Promise<void>;
}

/** A snapshot is asked of the run at most this often, however many clients ask. */
const SNAPSHOT_AGE_MS_MAX = 200;
const HEARTBEAT_TICKS = 15;
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
 * Starts the read-only monitor on loopback: the page at `/`, the status document at `/api/status`, its schema,
 * stream and history, `/metrics`, `/healthz` and `/readyz`. Throws a RunError where the port cannot be had.
 */
export async function startMonitor(options: MonitorOptions): Promise<Monitor> {
  const { history, log, tickMs = 1_000 } = options;
  const snapshots = new Snapshots(options);
  const stream = new SnapshotStream(options.stream);
  const { source, nowMs, pageDirectory } = options;
  const app = routes({ source, history, log, nowMs, pageDirectory, snapshots, stream });
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

  let ticks = 0;
  let previous: StatusDocument | null = null;
  const timer = setInterval(() => {
    const snapshot = snapshots.take();
    ticks += 1;
    if (snapshot) {
      history.add(historyPoint(snapshot.document, previous));
      previous = snapshot.document;
    }
    const frame = ticks % HEARTBEAT_TICKS === 0 || !snapshot ? HEARTBEAT_FRAME : snapshotFrame(snapshot.json);
    stream.send(frame).catch((error: unknown) => log.warn("monitor.stream", { error: describeError(error) }));
  }, tickMs);
  timer.unref();

  return {
    url: `http://127.0.0.1:${port}`,
    port,
    close: async () => {
      clearInterval(timer);
      // How it ended is what an open page should go on showing.
      const last = snapshots.take();
      if (last) await stream.send(snapshotFrame(last.json));
      stream.close();
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      // Streams get the turn they need to say goodbye; nothing else is worth waiting for.
      setImmediate(() => server.closeAllConnections());
      await closed;
    },
  };
}

interface RouteOptions
  extends Pick<MonitorOptions, "source" | "history" | "log" | "nowMs" | "pageDirectory"> {
  snapshots: Snapshots;
  stream: SnapshotStream;
}

function routes({ source, history, log, nowMs, pageDirectory, snapshots, stream }: RouteOptions) {
  const app = new Hono<{ Bindings: HttpBindings }>();
  const files = readPageFiles(pageDirectory ?? fileURLToPath(new URL("../web/", import.meta.url)));
  const schemaJson = JSON.stringify(z.toJSONSchema(StatusDocument));
  const json = (body: string | Buffer<ArrayBuffer>, status = 200) =>
    new Response(body, {
      status,
      headers: { "content-type": "application/json; charset=utf-8", "cache-control": "no-store" },
    });
  const problem = (status: number, error: string) => json(JSON.stringify({ error }), status);
  const noSnapshot = () => problem(503, "the run could not give its status just now");

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

  app.get("/api/status", () => {
    const snapshot = snapshots.current();
    return snapshot ? json(snapshot.json) : noSnapshot();
  });
  app.get("/api/schema.json", () => json(schemaJson));
  app.get("/api/history", ({ req }) => {
    const from = req.query("from") ?? "0";
    if (!/^\d{1,12}(?:\.\d{1,6})?$/.test(from)) {
      return problem(400, "expected from to be a time in Unix seconds, such as ?from=1764547200");
    }
    return json(JSON.stringify({ now: nowMs() / 1_000, ...history.since(Number(from)) }));
  });
  app.get("/api/events", ({ req, env }) => {
    const snapshot = snapshots.current();
    if (!snapshot) return noSnapshot();
    const { outgoing } = env;
    outgoing.writeHead(200, {
      "content-type": "text/event-stream; charset=utf-8",
      "cache-control": "no-store",
      "x-accel-buffering": "no",
    });
    if (req.method === "HEAD") outgoing.end();
    else stream.add(outgoing, snapshotFrame(snapshot.json));
    return RESPONSE_ALREADY_SENT;
  });
  app.get("/metrics", () => {
    const snapshot = snapshots.current();
    if (!snapshot) return noSnapshot();
    return new Response(prometheusText(snapshot.document, source.counters()), {
      headers: { "content-type": METRICS_CONTENT_TYPE, "cache-control": "no-store" },
    });
  });
  app.get("/healthz", () => {
    const snapshot = snapshots.current();
    return snapshot ? json(JSON.stringify({ ok: true, state: snapshot.document.run.state })) : noSnapshot();
  });
  app.get("/readyz", () => {
    const state = snapshots.current()?.document.run.state ?? null;
    const ready = state !== null && READY_STATES.includes(state);
    return json(JSON.stringify({ ready, state }), ready ? 200 : 503);
  });
  app.onError((error) => {
    log.error("monitor.error", { error: describeError(error) });
    return problem(500, "the monitor failed to answer; the run is not harmed");
  });
  return app;
}

interface Snapshot {
  document: StatusDocument;
  json: Buffer<ArrayBuffer>;
  takenAtMs: number;
}

/** The run's newest snapshot, serialised once for everyone who asks for it. */
class Snapshots {
  readonly #options: MonitorOptions;
  #last: Snapshot | null = null;
  #failing = false;

  constructor(options: MonitorOptions) {
    this.#options = options;
  }

  /** Null when the run fails to give one: a fault of the monitor's must not become the run's. */
  take(): Snapshot | null {
    const { source, log, nowMs } = this.#options;
    try {
      const document = source.snapshot();
      this.#last = { document, json: Buffer.from(JSON.stringify(document)), takenAtMs: nowMs() };
      this.#failing = false;
    } catch (error) {
      if (!this.#failing) log.error("monitor.snapshot", { error: describeError(error) });
      this.#failing = true;
      this.#last = null;
    }
    return this.#last;
  }

  current(): Snapshot | null {
    const ageMs = this.#last ? this.#options.nowMs() - this.#last.takenAtMs : Number.POSITIVE_INFINITY;
    return ageMs >= 0 && ageMs < SNAPSHOT_AGE_MS_MAX ? this.#last : this.take();
  }
}

/** Tries `port`, then the next ones. The run prints what it got. */
async function listen(server: Server, { port, nextFreePort = true }: MonitorOptions): Promise<number> {
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
