import { connect } from "node:net";
import { afterEach, expect, test } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { askSupervisor, type ControlHandlers, type ControlServer, serveControl } from "./channel.ts";

const servers: ControlServer[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.close();
});

async function serve(handlers: Partial<ControlHandlers> = {}): Promise<ControlServer> {
  const server = await serveControl({
    status: () => ({ state: "running" }),
    set: () => ({}),
    stop: () => ({}),
    ...handlers,
  });
  servers.push(server);
  return server;
}

/** Sends raw bytes and resolves with all that comes back until the server closes. */
function raw(server: ControlServer, bytes: string | Buffer, end = false): Promise<string> {
  return new Promise((resolve, reject) => {
    const connection = connect(`\0${server.socket}`);
    let answer = "";
    connection.on("data", (chunk) => {
      answer += chunk.toString();
    });
    connection.on("error", reject);
    connection.on("close", () => resolve(answer));
    connection.write(bytes);
    if (end) connection.end();
  });
}

test("status, set and stop reach their handlers, and results come back", async () => {
  const calls: unknown[] = [];
  const server = await serve({
    set: (settings) => {
      calls.push(settings);
      return { was: "auto" };
    },
    stop: (reason) => void calls.push(reason),
  });
  expect(await askSupervisor(server, { verb: "status" })).toEqual({ state: "running" });
  expect(await askSupervisor(server, { verb: "set", settings: { uploads: 200 } })).toEqual({ was: "auto" });
  await askSupervisor(server, { verb: "stop", reason: "test" });
  expect(calls).toEqual([{ uploads: 200 }, "test"]);
});

test("a wrong token reaches no handler", async () => {
  let asked = 0;
  const server = await serve({ status: () => (asked += 1) });
  const wrong = askSupervisor({ socket: server.socket, token: "0".repeat(64) }, { verb: "status" });
  await expect(wrong).rejects.toThrow(/wrong token/);
  expect(asked).toBe(0);
  expect(await askSupervisor(server, { verb: "status" })).toBe(1);
});

test("settings out of range and unknown verbs are refused by the schema", async () => {
  let changed = 0;
  const server = await serve({ set: () => (changed += 1) });
  const bad = (request: unknown) => raw(server, `${JSON.stringify({ token: server.token, request })}\n`);
  expect(await bad({ verb: "set", settings: { uploads: 5_000 } })).toContain('"ok":false');
  expect(await bad({ verb: "set", settings: { upload: 5 } })).toContain('"ok":false');
  expect(await bad({ verb: "rm" })).toContain('"ok":false');
  expect(await bad(undefined)).toContain('"ok":false');
  expect(changed).toBe(0);
});

test("garbage, an over-long line and a half request are answered or dropped, and the server lives on", async () => {
  const server = await serve();
  expect(await raw(server, "GET / HTTP/1.1\r\n")).toContain('"ok":false');
  expect(await raw(server, Buffer.alloc(100_000, "x"))).toContain('"ok":false');
  expect(await raw(server, '{"token":', true)).toContain('"ok":false');
  expect(await askSupervisor(server, { verb: "status" })).toEqual({ state: "running" });
});

test("a handler that throws tells the caller and leaves the supervisor running", async () => {
  const server = await serve({
    set: () => {
      throw new RunError({ op: "set", subject: "uploads", message: "still starting", hint: "in a moment" });
    },
  });
  const error = await askSupervisor(server, { verb: "set", settings: {} }).catch((e: unknown) => e);
  expect(error).toBeInstanceOf(RunError);
  expect((error as RunError).message).toBe("still starting");
  expect((error as RunError).hint).toBe("in a moment");
  expect(await askSupervisor(server, { verb: "status" })).toEqual({ state: "running" });
});

test("a supervisor that is gone is said to be gone, with the exit code to try again", async () => {
  const server = await serve();
  await server.close();
  const error = await askSupervisor(server, { verb: "status" }).catch((e: unknown) => e);
  expect((error as RunError).exit).toBe(EXIT.retryLater);
});

test("a document of a megabyte comes through whole", async () => {
  const big = { rows: Array.from({ length: 50_000 }, (_, i) => `row ${i} ${"x".repeat(10)}`) };
  const server = await serve({ status: () => big });
  expect(await askSupervisor(server, { verb: "status" })).toEqual(big);
});
