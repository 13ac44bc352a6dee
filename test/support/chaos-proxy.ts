import { createHash } from "node:crypto";
import * as http from "node:http";
import * as https from "node:https";
import type { AddressInfo, Socket } from "node:net";

/**
 * A fault on the way between client and store. The first seven are Toxiproxy's, by its names and meanings; the
 * others know HTTP. Bytes count the body, in the direction from client to store for PUTs, from store to client else.
 */
type Toxic =
  | { kind: "latency"; ms: number; jitterMs?: number }
  | { kind: "bandwidth"; bytesPerSecond: number }
  /** TCP RST, before anything reaches the store. */
  | { kind: "reset_peer" }
  /** The answer is whole, but its end comes late. */
  | { kind: "slow_close"; ms: number }
  /** Nothing reaches the store and nothing is answered; closed after `ms`, or never. */
  | { kind: "timeout"; ms?: number }
  /** The answer arrives in pieces of `bytes`, one a `ms`. */
  | { kind: "slicer"; bytes: number; ms: number }
  /** Both sides are cut after so many bytes. */
  | { kind: "limit_data"; bytes: number }
  /** The store never hears of it; the answer is made up here. */
  | { kind: "status"; status: number; code?: string; retryAfterS?: number; html?: boolean }
  /** 200 with S3's <Error> as the body. */
  | { kind: "error_in_200"; code: string }
  /** The store never hears of it, and the client is told that it is done. */
  | { kind: "swallow" }
  /** The store does it, and the answer is lost. */
  | { kind: "lost_response" }
  | { kind: "wrong_etag" }
  /** One bit of one byte, chosen by the seed. */
  | { kind: "flip_byte"; direction: "up" | "down" }
  /** The answer's body ends early, in good order. */
  | { kind: "truncate"; bytes: number }
  /** Objects whose key matches are missing from LIST. */
  | { kind: "stale_list"; hide: RegExp }
  /** The store keeps the first `bytes` of a PUT as if they were all, and the connection dies: `keep` stores them. */
  | { kind: "torn_put"; bytes: number; keep: (key: string, bytes: Buffer) => Promise<void> };

export interface Rule {
  toxic: Toxic;
  method?: string;
  /** Matched against the path with its query, unescaped: "/bucket/prefix/key?list-type=2...". */
  path?: RegExp;
  /** Only the nth request that matches the rest (1 = the first). */
  nth?: number;
  /** Only so many times; then the rule rests. */
  times?: number;
  /** Chance by the proxy's seed. Default 1. */
  probability?: number;
}

interface ActiveRule {
  /** How many requests it has struck. */
  readonly hits: number;
  remove(): void;
  /** Resolves once it has struck so often. */
  struck(times: number): Promise<void>;
}

interface SeenRequest {
  method: string;
  path: string;
  toxic: Toxic["kind"] | null;
  /** What the client was told; null where it was told nothing. */
  status: number | null;
}

export interface ChaosProxy {
  endpoint: string;
  seed: number;
  seen: SeenRequest[];
  add(rule: Rule): ActiveRule;
  /** All rules away; what is under way ends as it began. */
  clear(): void;
  stop(): Promise<void>;
}

/**
 * A proxy on loopback in front of the server at `upstream`, on a free port or that one; harmless until rules are added. The first rule that
 * matches a request strikes. Equal seeds and equal requests give equal faults.
 */
export async function startChaosProxy(
  upstream: string,
  {
    seed = newSeed(),
    tls,
    port = 0,
  }: { seed?: number; tls?: { key: string; cert: string }; port?: number } = {},
): Promise<ChaosProxy> {
  const target = new URL(upstream);
  const random = mulberry32(seed);
  const rules: LiveRule[] = [];
  const seen: SeenRequest[] = [];
  const sockets = new Set<Socket>();
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1_000 });

  const onRequest: http.RequestListener = (incoming, outgoing) => {
    const method = incoming.method ?? "";
    const path = decodeURIComponent(incoming.url ?? "");
    const rule = rules.find((candidate) => candidate.matches(method, path, random));
    const entry: SeenRequest = { method, path, toxic: rule?.toxic.kind ?? null, status: null };
    seen.push(entry);
    rule?.strike();
    const exchange = new Exchange(incoming, outgoing, target, agent, random, entry);
    exchange.run(rule?.toxic ?? null).catch(() => incoming.socket.destroy());
  };
  const server = tls ? https.createServer(tls, onRequest) : http.createServer(onRequest);
  server.on("connection", (socket: Socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
    socket.on("error", () => {});
  });
  // A proxy has no opinion on how long its requests take.
  server.requestTimeout = 0;
  server.headersTimeout = 0;
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  return {
    endpoint: `${tls ? "https" : "http"}://127.0.0.1:${(server.address() as AddressInfo).port}`,
    seed,
    seen,
    add: (rule) => {
      const live = new LiveRule(rule, () => rules.splice(rules.indexOf(live), 1));
      rules.push(live);
      return live;
    },
    clear: () => {
      rules.length = 0;
    },
    stop: async () => {
      for (const socket of sockets) socket.destroy();
      agent.destroy();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}

class LiveRule implements ActiveRule {
  readonly toxic: Toxic;
  hits = 0;
  readonly #rule: Rule;
  readonly #remove: () => void;
  readonly #waiting: { times: number; resolve: () => void }[] = [];
  #matched = 0;

  constructor(rule: Rule, remove: () => void) {
    this.toxic = rule.toxic;
    this.#rule = rule;
    this.#remove = remove;
  }

  matches(method: string, path: string, random: () => number): boolean {
    const rule = this.#rule;
    if (rule.method && rule.method !== method) return false;
    if (rule.path && !rule.path.test(path)) return false;
    this.#matched += 1;
    if (rule.nth && rule.nth !== this.#matched) return false;
    if (rule.times && this.hits >= rule.times) return false;
    return rule.probability === undefined || random() < rule.probability;
  }

  strike(): void {
    this.hits += 1;
    for (const { times, resolve } of this.#waiting) if (this.hits >= times) resolve();
  }

  struck(times: number): Promise<void> {
    return new Promise((resolve) => {
      if (this.hits >= times) resolve();
      else this.#waiting.push({ times, resolve });
    });
  }

  remove(): void {
    this.#remove();
  }
}

/** One request on its way through. Bodies are buffered, except where a toxic is about their flow. */
class Exchange {
  readonly #incoming: http.IncomingMessage;
  readonly #outgoing: http.ServerResponse;
  readonly #target: URL;
  readonly #agent: http.Agent;
  readonly #random: () => number;
  readonly #entry: SeenRequest;

  constructor(
    incoming: http.IncomingMessage,
    outgoing: http.ServerResponse,
    target: URL,
    agent: http.Agent,
    random: () => number,
    entry: SeenRequest,
  ) {
    this.#incoming = incoming;
    this.#outgoing = outgoing;
    this.#target = target;
    this.#agent = agent;
    this.#random = random;
    this.#entry = entry;
  }

  async run(toxic: Toxic | null): Promise<void> {
    const socket = this.#incoming.socket;
    switch (toxic?.kind) {
      case undefined:
        return this.#answer(await this.#forward(await this.#body()));
      case "latency":
        await pause(toxic.ms + this.#random() * (toxic.jitterMs ?? 0));
        return this.#answer(await this.#forward(await this.#body()));
      case "bandwidth": {
        const up = await this.#body(toxic.bytesPerSecond);
        const answer = await this.#forward(up);
        // Ten pieces a second.
        return this.#answerInPieces(answer, Math.max(1, Math.ceil(toxic.bytesPerSecond / 10)), 100);
      }
      case "reset_peer":
        socket.resetAndDestroy();
        return;
      case "slow_close": {
        const answer = await this.#forward(await this.#body());
        this.#head(answer);
        const last = answer.body.length - 1;
        if (last >= 0) this.#outgoing.write(answer.body.subarray(0, last));
        await pause(toxic.ms);
        this.#outgoing.end(answer.body.subarray(Math.max(0, last)));
        return;
      }
      case "timeout":
        this.#incoming.resume();
        if (toxic.ms === undefined) return;
        await pause(toxic.ms);
        socket.destroy();
        return;
      case "slicer":
        return this.#answerInPieces(await this.#forward(await this.#body()), toxic.bytes, toxic.ms);
      case "limit_data":
        return this.#limitData(toxic.bytes);
      case "status":
        // Drained first: an answer to a request half sent may be lost with the connection.
        await this.#body();
        return this.#answer(madeUp(toxic));
      case "error_in_200":
        await this.#body();
        return this.#answer(madeUp({ kind: "status", status: 200, code: toxic.code }));
      case "swallow": {
        const etag = `"${createHash("md5")
          .update(await this.#body())
          .digest("hex")}"`;
        return this.#answer({
          status: 200,
          headers: { date: new Date().toUTCString(), etag },
          body: Buffer.alloc(0),
        });
      }
      case "lost_response":
        await this.#forward(await this.#body());
        socket.resetAndDestroy();
        return;
      case "wrong_etag": {
        const answer = await this.#forward(await this.#body());
        if (answer.headers.etag) answer.headers.etag = `"${"0".repeat(32)}"`;
        return this.#answer(answer);
      }
      case "flip_byte": {
        const up = await this.#body();
        if (toxic.direction === "up") return this.#answer(await this.#forward(this.#flip(up)));
        const answer = await this.#forward(up);
        return this.#answer({ ...answer, body: this.#flip(answer.body) });
      }
      case "truncate": {
        const answer = await this.#forward(await this.#body());
        return this.#answer({ ...answer, body: answer.body.subarray(0, toxic.bytes) });
      }
      case "stale_list": {
        const answer = await this.#forward(await this.#body());
        return this.#answer({ ...answer, body: hideKeys(answer.body, toxic.hide) });
      }
      case "torn_put": {
        const up = await this.#body();
        await toxic.keep(decodeURIComponent(this.#incoming.url ?? ""), up.subarray(0, toxic.bytes));
        socket.resetAndDestroy();
        return;
      }
    }
  }

  /** The request's body, read as fast as `bytesPerSecond` allows. */
  async #body(bytesPerSecond?: number): Promise<Buffer> {
    const chunks: Buffer[] = [];
    for await (const chunk of this.#incoming as AsyncIterable<Buffer>) {
      chunks.push(chunk);
      if (bytesPerSecond) await pause((chunk.length / bytesPerSecond) * 1000);
    }
    return Buffer.concat(chunks);
  }

  #request(): http.ClientRequest {
    return http.request({
      host: this.#target.hostname,
      port: this.#target.port,
      method: this.#incoming.method,
      path: this.#incoming.url,
      // Host too, unchanged: it is signed.
      headers: this.#incoming.headers,
      agent: this.#agent,
    });
  }

  async #forward(body: Buffer): Promise<Answer> {
    const request = this.#request();
    const answer = await new Promise<http.IncomingMessage>((resolve, reject) => {
      request.on("error", reject);
      request.on("response", resolve);
      request.end(body);
    });
    const chunks: Buffer[] = [];
    for await (const chunk of answer as AsyncIterable<Buffer>) chunks.push(chunk);
    return { status: answer.statusCode ?? 502, headers: { ...answer.headers }, body: Buffer.concat(chunks) };
  }

  #head(answer: Answer): void {
    const headers = { ...answer.headers };
    // Of a HEAD it is the object's length; of the rest, what is really sent.
    if (this.#incoming.method !== "HEAD" && answer.status !== 204) {
      headers["content-length"] = String(answer.body.length);
      delete headers["transfer-encoding"];
    }
    delete headers.connection;
    this.#entry.status = answer.status;
    this.#outgoing.writeHead(answer.status, headers);
  }

  #answer(answer: Answer): void {
    this.#head(answer);
    this.#outgoing.end(answer.body);
  }

  async #answerInPieces(answer: Answer, bytes: number, ms: number): Promise<void> {
    this.#head(answer);
    for (let at = 0; at < answer.body.length && !this.#outgoing.destroyed; at += bytes) {
      this.#outgoing.write(answer.body.subarray(at, at + bytes));
      await pause(ms);
    }
    this.#outgoing.end();
  }

  async #limitData(bytes: number): Promise<void> {
    const socket = this.#incoming.socket;
    if (this.#incoming.method !== "PUT") {
      const answer = await this.#forward(await this.#body());
      this.#head(answer);
      this.#outgoing.write(answer.body.subarray(0, bytes), () => socket.destroy());
      return;
    }
    const request = this.#request();
    request.on("error", () => {});
    let sent = 0;
    for await (const chunk of this.#incoming as AsyncIterable<Buffer>) {
      const part = chunk.subarray(0, bytes - sent);
      sent += part.length;
      await new Promise((resolve) => request.write(part, resolve));
      if (sent >= bytes) break;
    }
    request.destroy();
    socket.destroy();
  }

  #flip(body: Buffer): Buffer {
    const flipped = Buffer.from(body);
    if (flipped.length > 0) {
      flipped[Math.floor(this.#random() * flipped.length)]! ^= 1 << Math.floor(this.#random() * 8);
    }
    return flipped;
  }
}

interface Answer {
  status: number;
  headers: http.IncomingHttpHeaders;
  body: Buffer;
}

function madeUp(toxic: Extract<Toxic, { kind: "status" }>): Answer {
  const headers: http.IncomingHttpHeaders = {
    "content-type": toxic.html ? "text/html" : "application/xml",
    date: new Date().toUTCString(),
  };
  if (toxic.retryAfterS !== undefined) headers["retry-after"] = String(toxic.retryAfterS);
  const xml = `<?xml version="1.0"?><Error><Code>${toxic.code ?? "Unknown"}</Code><Message>made up</Message></Error>`;
  const html = "<!doctype html><html><body>Welcome to the console</body></html>";
  return { status: toxic.status, headers, body: Buffer.from(toxic.html ? html : xml) };
}

function hideKeys(xml: Buffer, hide: RegExp): Buffer {
  const contents = /<Contents>[\s\S]*?<\/Contents>/g;
  const isHidden = (entry: string) => hide.test(/<Key>([^<]*)<\/Key>/.exec(entry)?.[1] ?? "");
  return Buffer.from(xml.toString("utf8").replace(contents, (entry) => (isHidden(entry) ? "" : entry)));
}

function newSeed(): number {
  return Math.floor(Math.random() * 2 ** 32);
}

/** A small seeded generator, uniform in [0, 1). Source: Tommy Ettinger's mulberry32, public domain. */
export function mulberry32(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
