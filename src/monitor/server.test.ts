import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { get, request } from "node:http";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { gunzipSync } from "node:zlib";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import { RunError } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import { StatusDocument, type StatusSource } from "../run/status.ts";
import { History } from "./history.ts";
import { type MonitorServer, type ServerOptions, startServer } from "./server.ts";

let directory: string;
let monitors: MonitorServer[];
let ticking: NodeJS.Timeout[];
let sockets: Socket[];

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-page-"));
  mkdirSync(join(directory, "assets"));
  writeFileSync(join(directory, "index.html"), "<!doctype html><title>page</title>");
  writeFileSync(join(directory, "assets", "index-abc.js"), `${"// code\n".repeat(200)}`);
  writeFileSync(join(directory, "secret.txt"), "not a page");
  monitors = [];
  ticking = [];
  sockets = [];
});
afterEach(async () => {
  for (const timer of ticking) clearInterval(timer);
  for (const socket of sockets) socket.destroy();
  await Promise.all(monitors.map((monitor) => monitor.close()));
  rmSync(directory, { recursive: true });
});

/** A server over `source`, which publishes each `tickMs` where that is given. */
async function start({
  source = scriptedRun({ nowMs: Date.now }),
  tickMs,
  ...options
}: Partial<ServerOptions> & { source?: StatusSource; tickMs?: number } = {}): Promise<MonitorServer> {
  const published = () => ({ document: source.snapshot(), counters: source.counters() });
  const monitor = await startServer({
    first: published(),
    history: new History(),
    port: 0,
    log: silentLog,
    nowMs: Date.now,
    pageDirectory: directory,
    ...options,
  });
  monitors.push(monitor);
  if (tickMs) ticking.push(setInterval(() => monitor.publish(published()), tickMs));
  return monitor;
}

/** A request with exactly these headers; `fetch` would not let us lie about Host. */
function ask(
  monitor: MonitorServer,
  path: string,
  {
    method = "GET",
    headers = {},
    body,
  }: { method?: string; headers?: Record<string, string>; body?: string } = {},
): Promise<{ status: number; headers: Record<string, unknown>; body: Buffer }> {
  return new Promise((resolve, reject) => {
    const sent = request({ port: monitor.port, host: "127.0.0.1", path, method, headers }, (answer) => {
      const chunks: Buffer[] = [];
      answer.on("data", (chunk: Buffer) => chunks.push(chunk));
      answer.on("end", () =>
        resolve({ status: answer.statusCode!, headers: answer.headers, body: Buffer.concat(chunks) }),
      );
    });
    sent.on("error", reject);
    sent.end(body);
  });
}

/** Bytes as they are, and everything that comes back until the other side closes. */
function raw(monitor: MonitorServer, text: string): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect(monitor.port, "127.0.0.1", () => socket.write(text));
    sockets.push(socket);
    let answer = "";
    socket.on("data", (chunk) => {
      answer += chunk.toString();
    });
    socket.on("close", () => resolve(answer));
    socket.on("error", reject);
  });
}

test("the status is the run's document, to the schema that is published beside it", async () => {
  const monitor = await start();
  const { body, headers } = await ask(monitor, "/api/status");
  expect(() => StatusDocument.parse(JSON.parse(body.toString()))).not.toThrow();
  expect(headers["content-type"]).toBe("application/json; charset=utf-8");
  const schema = JSON.parse((await ask(monitor, "/api/schema.json")).body.toString());
  expect(schema.properties.extraction.properties.shards.items.required).toEqual([
    "shard",
    "processed",
    "total",
    "rate_per_sec",
    "batch",
    "total_batches",
  ]);
});

test("the one-liner that people have reads on", async () => {
  const monitor = await start();
  const d = JSON.parse((await ask(monitor, "/api/status")).body.toString());
  const e = d.extraction;
  for (const name of ["total_processed", "agg_rate", "eta_hours", "hs_local"])
    expect(e[name]).toBeTypeOf("number");
  for (const s of e.shards) {
    for (const name of ["shard", "processed", "total", "rate_per_sec", "batch", "total_batches"]) {
      expect(s[name]).toBeTypeOf("number");
    }
  }
});

test("unknown paths are 404, other methods 405, broken queries 400: all as JSON, all saying what is right", async () => {
  const monitor = await start();
  for (const [path, method, status] of [
    ["/nope", "GET", 404],
    ["/api/status", "POST", 405],
    ["/api/status", "DELETE", 405],
    ["/metrics", "PUT", 405],
    ["/api/history?from=yesterday", "GET", 400],
    ["/api/history?from=-1", "GET", 400],
    ["/api/history?from=1e99", "GET", 400],
    [`/api/status?${"q".repeat(5_000)}`, "GET", 400],
    [`/api/status?${"q".repeat(500_000)}`, "GET", 400],
  ] as const) {
    const { body, ...answer } = await ask(monitor, path, { method });
    expect(answer.status, `${method} ${path.slice(0, 60)}`).toBe(status);
    expect(JSON.parse(body.toString()).error).toMatch(/expected|no such|only looks/);
  }
  expect((await ask(monitor, "/api/status", { method: "POST" })).headers.allow).toBe("GET, HEAD");
});

test("a name rebound to this machine reads nothing (DNS rebinding)", async () => {
  const monitor = await start();
  for (const path of ["/", "/api/status", "/api/events", "/api/history", "/metrics", "/healthz", "/nope"]) {
    const { status, body } = await ask(monitor, path, { headers: { host: `evil.example:${monitor.port}` } });
    expect(status).toBe(403);
    expect(body.toString()).not.toContain("qwen");
  }
  const none = await raw(monitor, "GET /api/status HTTP/1.0\r\n\r\n");
  expect(none).toMatch(/^HTTP\/1.1 403 /);
  const two = await raw(
    monitor,
    "GET /api/status HTTP/1.1\r\nhost: evil.example\r\nhost: localhost\r\nconnection: close\r\n\r\n",
  );
  expect(two).toMatch(/^HTTP\/1.1 (400|403) /);
  expect((await ask(monitor, "/api/status", { headers: { host: "localhost:9999" } })).status).toBe(200);
});

test("another site's script is told nothing: no CORS header, no frame, no sniffing, no inline script", async () => {
  const monitor = await start();
  for (const path of ["/", "/api/status", "/api/events", "/nope"]) {
    const { headers } = await ask(monitor, path, {
      method: "HEAD",
      headers: { origin: "https://evil.example" },
    });
    expect(Object.keys(headers).filter((name) => name.startsWith("access-control-"))).toEqual([]);
    expect(headers["x-content-type-options"]).toBe("nosniff");
    expect(headers["cross-origin-resource-policy"]).toBe("same-origin");
    expect(headers["content-security-policy"]).toContain("default-src 'none'");
    expect(headers["content-security-policy"]).toContain("frame-ancestors 'none'");
    expect(headers["content-security-policy"]).not.toContain("unsafe");
  }
});

test("no path leads out of the page's files", async () => {
  const monitor = await start();
  for (const path of [
    "/../package.json",
    "/assets/../../package.json",
    "/assets/..%2f..%2f..%2f..%2fetc%2fpasswd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/assets/index-abc.js/..",
    "/assets\\..\\..\\etc\\passwd",
    "/secret.txt",
    "/assets",
    "/index.html%00.js",
  ]) {
    const answer = await raw(monitor, `GET ${path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n`);
    expect(answer, path).toMatch(/^HTTP\/1.1 40[04] /);
  }
});

test("a body is refused before it is read, and the connection ends", async () => {
  const monitor = await start();
  const answer = await raw(
    monitor,
    `GET /api/status HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n${"x".repeat(65_536)}`,
  ).catch((error: NodeJS.ErrnoException) => error.code ?? "");
  expect(answer).toMatch(/^HTTP\/1.1 413 |^ECONNRESET|^EPIPE/);
  expect((await ask(monitor, "/healthz")).status).toBe(200);
});

test("bytes that are no HTTP get a short answer and an end", async () => {
  const monitor = await start();
  expect(await raw(monitor, "\u0016\u0003\u0001 hello\r\n\r\n")).toMatch(/^HTTP\/1.1 400 /);
  expect((await ask(monitor, "/healthz")).status).toBe(200);
});

test("the page comes gzipped where that is understood, and unchanged files are not sent again", async () => {
  const monitor = await start();
  const script = await ask(monitor, "/assets/index-abc.js", { headers: { "accept-encoding": "br, gzip" } });
  expect(script.headers["content-encoding"]).toBe("gzip");
  expect(gunzipSync(script.body).toString()).toContain("// code");
  expect(script.headers["cache-control"]).toContain("immutable");
  const plain = await ask(monitor, "/");
  expect(plain.body.toString()).toContain("<title>page</title>");
  expect(plain.headers["cache-control"]).toBe("no-cache");
  const again = await ask(monitor, "/", { headers: { "if-none-match": String(plain.headers.etag) } });
  expect([again.status, again.body.length]).toEqual([304, 0]);
});

test("without a built page the API works and / says what to do", async () => {
  const monitor = await start({ pageDirectory: join(directory, "missing") });
  const { status, body } = await ask(monitor, "/");
  expect([status, body.toString()]).toEqual([503, expect.stringContaining("npm run build")]);
  expect((await ask(monitor, "/api/status")).status).toBe(200);
});

test("a busy port leads to the next one, or to an error that says what to do", async () => {
  const first = await start();
  const second = await start({ port: first.port });
  expect(second.port).toBeGreaterThan(first.port);
  expect(second.url).toBe(`http://127.0.0.1:${second.port}`);
  const refused = start({ port: first.port, nextFreePort: false });
  await expect(refused).rejects.toBeInstanceOf(RunError);
  await expect(refused).rejects.toMatchObject({
    subject: `127.0.0.1:${first.port}`,
    hint: expect.stringContaining("--port"),
  });
});

test("only loopback listens", async () => {
  const monitor = await start();
  // Whoever else wants this port on another address of the machine can have it.
  const other = createServer();
  await new Promise<void>((resolve, reject) => {
    other.on("error", reject);
    other.listen({ port: monitor.port, host: "127.0.0.2" }, resolve);
  });
  await new Promise((resolve) => other.close(resolve));
});

test("readiness follows the state, health does not", async () => {
  for (const [state, ready] of [
    ["starting", 503],
    ["running", 200],
    ["degraded", 200],
    ["blocked", 503],
    ["failed", 503],
    ["done", 200],
  ] as const) {
    const monitor = await start({ source: scriptedRun({ nowMs: Date.now, state }) });
    expect((await ask(monitor, "/readyz")).status, state).toBe(ready);
    expect((await ask(monitor, "/healthz")).status).toBe(200);
  }
});

test("the stream begins with the newest document and goes on with each that is published, the same for all", async () => {
  const monitor = await start({ tickMs: 40 });
  const [one, two] = await Promise.all([events(monitor, 4), events(monitor, 4)]);
  expect(one.map(({ run }) => run.name)).toEqual(Array(4).fill("qwen3.6-27b-chat"));
  expect(new Set(one.map((d) => d.generated_at)).size).toBe(4);
  expect(two.slice(1, 3).map((d) => d.generated_at)).toEqual(one.slice(1, 3).map((d) => d.generated_at));
});

test("each document published is a point of the history, and `from` gives the newer ones only", async () => {
  const history = new History();
  let nowMs = 1_764_547_200_000;
  const source = scriptedRun({
    nowMs: () => {
      nowMs += 1_000;
      return nowMs;
    },
  });
  const monitor = await start({ source, history, tickMs: 20 });
  await vi.waitFor(() => expect(history.points().length).toBeGreaterThan(5), 5_000);
  const all = JSON.parse((await ask(monitor, "/api/history")).body.toString());
  expect(all.t.length).toBeGreaterThan(5);
  expect(all.tokens_per_s.length).toBe(all.t.length);
  const newer = JSON.parse((await ask(monitor, `/api/history?from=${all.t[3]}`)).body.toString());
  expect(newer.t[0]).toBe(all.t[4]);
});

test("a run that falls silent is not healthy any more; its last word still stands", async () => {
  let nowMs = 1_764_547_200_000;
  const source = scriptedRun({ nowMs: () => nowMs });
  const monitor = await start({ source, nowMs: () => nowMs });
  const health = async () => {
    const { status, body } = await ask(monitor, "/healthz");
    return [status, JSON.parse(body.toString())];
  };
  nowMs += 15_000;
  expect(await health()).toEqual([200, { ok: true, state: "running", silent_s: 15 }]);
  nowMs += 1_000;
  expect(await health()).toEqual([503, { ok: false, state: "running", silent_s: 16 }]);
  expect((await ask(monitor, "/api/status")).status).toBe(200);
  monitor.publish({ document: source.snapshot(), counters: source.counters() });
  expect((await health())[0]).toBe(200);
});

test("a thousand idle streams: each gets its snapshot, and the oldest make room for a person", async () => {
  const monitor = await start({ tickMs: 100 });
  const open = await Promise.all(Array.from({ length: 1_000 }, () => idleStream(monitor)));
  expect(open.filter(({ begun }) => begun).length).toBe(1_000);
  // A person who opens the page now is not kept out.
  expect((await events(monitor, 2))[1]!.run.state).toBe("running");
  for (const { socket } of open) socket.resume();
  await vi.waitFor(() => expect(open.filter(({ socket }) => !socket.closed).length).toBeLessThan(256), {
    timeout: 20_000,
  });
  expect((await ask(monitor, "/api/status")).status).toBe(200);
}, 60_000);

test("closing ends the streams and frees the port", async () => {
  const monitor = await start();
  const stream = await idleStream(monitor);
  stream.socket.resume();
  await monitor.close();
  await vi.waitFor(() => expect(stream.socket.closed).toBe(true), 5_000);
  const again = await start({ port: monitor.port, nextFreePort: false });
  expect(again.port).toBe(monitor.port);
});

/** The first `count` documents of a new stream. */
function events(monitor: MonitorServer, count: number): Promise<StatusDocument[]> {
  return new Promise((resolve, reject) => {
    const sent = get(
      { port: monitor.port, host: "127.0.0.1", path: "/api/events", agent: false },
      (answer) => {
        const documents: StatusDocument[] = [];
        let text = "";
        answer.setEncoding("utf8");
        answer.on("data", (chunk: string) => {
          text += chunk;
          for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
            const data = /^data: (.*)$/m.exec(text.slice(0, end))?.[1];
            if (data) documents.push(JSON.parse(data));
            text = text.slice(end + 2);
            if (documents.length === count) {
              sent.destroy();
              resolve(documents);
            }
          }
        });
        answer.on("error", () => {});
      },
    );
    sent.on("error", reject);
  });
}

/** A stream that is opened, seen to begin, and then never read again. */
function idleStream(monitor: MonitorServer): Promise<{ socket: Socket; begun: boolean }> {
  return new Promise((resolve, reject) => {
    const socket = connect(monitor.port, "127.0.0.1", () =>
      socket.write("GET /api/events HTTP/1.1\r\nhost: localhost\r\n\r\n"),
    );
    sockets.push(socket);
    socket.on("error", () => {});
    socket.once("error", reject);
    socket.once("data", (chunk) => {
      socket.pause();
      resolve({ socket, begun: chunk.toString().startsWith("HTTP/1.1 200 OK") });
    });
  });
}
