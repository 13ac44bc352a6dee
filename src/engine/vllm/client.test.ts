import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, onTestFinished, test } from "vitest";
import { VllmClient } from "./client.ts";

/** A server that takes every request, sends `beginning` of an answer (null: nothing) and no more. */
async function silentServer(beginning: string | null): Promise<string> {
  const server = createServer((_request, response) => {
    if (beginning === null) return;
    response.writeHead(200, { "content-type": "application/json", "content-length": 1_000 });
    response.write(beginning);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

function clientOf(url: string): VllmClient {
  const client = new VllmClient(url, { lookMsMax: 200 });
  onTestFinished(() => client.close());
  return client;
}

test.each([
  ["that accepts and never answers", null],
  ["that stops in the middle of its answer", '{"data": ['],
])("a server %s is not waited for for ever, and the message says so", async (_what, beginning) => {
  const url = await silentServer(beginning);
  const client = clientOf(url);
  const late = (path: string) => `expected an answer to GET ${path} of ${url} within 0.2 s, found none`;
  await expect(client.needHealth()).rejects.toThrow(late("/health"));
  await expect(client.models()).rejects.toThrow(late("/v1/models"));
  await expect(client.version()).rejects.toThrow(late("/version"));
  expect(await client.isWell()).toBe(false);
});

test("a server that hangs counts as gone: a child that meets it is started anew", async () => {
  const client = clientOf(await silentServer(null));
  await expect(client.needHealth()).rejects.toMatchObject({ failure: { kind: "crash", retry: "restart" } });
});
