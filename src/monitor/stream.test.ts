import { createServer, get, type IncomingMessage, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { HEARTBEAT_FRAME, SnapshotStream, type StreamLimits, snapshotFrame } from "./stream.ts";

let server: Server | undefined;
let stream = new SnapshotStream();
let answers: IncomingMessage[];

beforeEach(() => {
  answers = [];
});
afterEach(async () => {
  for (const answer of answers) answer.destroy();
  stream.close(HEARTBEAT_FRAME);
  server?.closeAllConnections();
  await new Promise((resolve) => (server ? server.close(resolve) : resolve(null)));
  server = undefined;
});

async function serve(limits: StreamLimits): Promise<void> {
  stream = new SnapshotStream(limits);
  server = createServer((_, outgoing) => {
    outgoing.writeHead(200, { "content-type": "text/event-stream" });
    stream.add(outgoing, frameOf(0));
  });
  await new Promise<void>((resolve) => server!.listen(0, "127.0.0.1", resolve));
}

function open(): Promise<IncomingMessage> {
  const { port } = server!.address() as AddressInfo;
  return new Promise((resolve, reject) => {
    const sent = get({ port, host: "127.0.0.1", agent: false }, (answer) => {
      answers.push(answer);
      answer.on("error", () => {});
      resolve(answer);
    });
    sent.on("error", reject);
  });
}

function frameOf(n: number, bytes = 10): Buffer {
  return snapshotFrame(Buffer.from(JSON.stringify({ n, padding: "x".repeat(bytes) })));
}

test("a snapshot is one event, whole", () => {
  expect(frameOf(3).toString()).toBe('retry: 1000\nevent: status\ndata: {"n":3,"padding":"xxxxxxxxxx"}\n\n');
});

test("a client that takes nothing is dropped; one that reads stays and misses nothing", async () => {
  await serve({ missedMax: 4 });
  const reader = await open();
  let seen = "";
  reader.setEncoding("utf8").on("data", (chunk: string) => {
    seen += chunk;
  });
  await open();
  expect(stream.clients).toBe(2);
  let sent = 0;
  // Until the kernel's buffers for the idle connection are full and then four more.
  while (stream.clients > 1 && sent < 1_000) {
    sent += 1;
    await stream.send(frameOf(sent, 200_000));
    await vi.waitFor(() => expect(seen).toContain(`"n":${sent},`), { timeout: 5_000, interval: 1 });
  }
  expect(stream.clients).toBe(1);
  expect(seen.match(/"n":\d+/g)).toEqual(Array.from({ length: sent + 1 }, (_, n) => `"n":${n}`));
});

test("the oldest stream makes room for a new one", async () => {
  await serve({ clientsMax: 3 });
  const [oldest] = [await open(), await open(), await open()];
  oldest.resume();
  await open();
  await vi.waitFor(() => expect(oldest.closed || oldest.destroyed).toBe(true));
  expect(stream.clients).toBe(3);
});

test("a client that leaves is forgotten", async () => {
  await serve({});
  const one = await open();
  one.destroy();
  await vi.waitFor(() => expect(stream.clients).toBe(0));
  await stream.send(frameOf(1));
});

test("while one snapshot is being sent the next are left out, and the one after goes out", async () => {
  await serve({});
  const reader = await open();
  let seen = "";
  reader.setEncoding("utf8").on("data", (chunk: string) => {
    seen += chunk;
  });
  await Promise.all([stream.send(frameOf(1)), stream.send(frameOf(2)), stream.send(frameOf(3))]);
  await vi.waitFor(() => expect(seen).toContain('"n":1,'));
  await stream.send(frameOf(4));
  await vi.waitFor(() => expect(seen).toContain('"n":4,'));
  expect(seen.match(/"n":\d+/g)).toEqual(['"n":0', '"n":1', '"n":4']);
});

test("the end is told to every client, whatever was being sent", async () => {
  await serve({});
  const readers = await Promise.all(Array.from({ length: 20 }, open));
  const texts = readers.map(
    (reader) =>
      new Promise<string>((resolve) => {
        let text = "";
        reader.setEncoding("utf8").on("data", (chunk: string) => {
          text += chunk;
        });
        reader.on("end", () => resolve(text));
      }),
  );
  const sending = stream.send(frameOf(1));
  stream.close(frameOf(2));
  await sending;
  for (const text of await Promise.all(texts)) expect(text.match(/"n":\d+/g)?.at(-1)).toBe('"n":2');
  expect(stream.clients).toBe(0);
});
