import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

/** What the way to the store allows; each may change while it runs. */
export interface Limits {
  /** Of all PUT bodies together: a thin uplink. */
  bytesPerS: number;
  /** Of each PUT: a long way, where more connections carry more. */
  bytesPerSEach: number;
  /** PUTs at once; one more is answered with SlowDown: a store with a rate limit. */
  putsAtOnce: number;
}

export interface SlowStore {
  endpoint: string;
  limits: Limits;
  close(): Promise<void>;
}

const SLICE_BYTES = 16 * 1024;
const SLOW_DOWN =
  '<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>';

/** A real S3 server behind real limits: requests go through unchanged, as fast as `limits` lets them. */
export async function startSlowStore(target: string, limits: Partial<Limits> = {}): Promise<SlowStore> {
  const { hostname, port } = new URL(target);
  const now: Limits = {
    bytesPerS: Number.POSITIVE_INFINITY,
    bytesPerSEach: Number.POSITIVE_INFINITY,
    putsAtOnce: Number.POSITIVE_INFINITY,
    ...limits,
  };
  let puts = 0;
  /** When the shared link is free again, in ms. */
  let linkFreeMs = 0;

  const server = createServer((incoming, outgoing) => {
    const isPut = incoming.method === "PUT";
    if (isPut && puts >= now.putsAtOnce) return void slowDown(incoming, outgoing);
    if (isPut) {
      puts += 1;
      outgoing.once("close", () => {
        puts -= 1;
      });
    }
    forward(incoming, outgoing, isPut).catch(() => outgoing.destroy());
  });

  async function forward(incoming: IncomingMessage, outgoing: ServerResponse, isPut: boolean): Promise<void> {
    const { method, url: path, headers } = incoming;
    const onward = request({ hostname, port, method, path, headers }, (answer) => {
      outgoing.writeHead(answer.statusCode ?? 502, answer.headers);
      answer.pipe(outgoing);
    });
    onward.on("error", () => outgoing.destroy());
    outgoing.on("close", () => onward.destroy());
    for await (const chunk of incoming as AsyncIterable<Buffer>) {
      for (let at = 0; at < chunk.length; at += SLICE_BYTES) {
        const slice = chunk.subarray(at, at + SLICE_BYTES);
        if (isPut) await pace(slice.length);
        onward.write(slice);
      }
    }
    onward.end();
  }

  /** Waits for this slice's turn on the shared link, and for its time on its own. */
  async function pace(bytes: number): Promise<void> {
    const startMs = performance.now();
    linkFreeMs = Math.max(linkFreeMs, startMs) + (bytes / now.bytesPerS) * 1_000;
    const doneMs = Math.max(linkFreeMs, startMs + (bytes / now.bytesPerSEach) * 1_000);
    if (doneMs > startMs + 1) await sleep(doneMs - startMs);
  }

  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    limits: now,
    close: async () => {
      const closed = new Promise((resolve) => server.close(resolve));
      server.closeAllConnections();
      await closed;
    },
  };
}

function slowDown(incoming: IncomingMessage, outgoing: ServerResponse): void {
  outgoing.writeHead(503, { "content-type": "application/xml", connection: "close" });
  outgoing.end(SLOW_DOWN);
  incoming.resume();
}
