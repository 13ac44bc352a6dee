import { execFile, execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, it } from "vitest";
import { openStore } from "../src/store/open.ts";
import { type ChaosProxy, startChaosProxy } from "./support/chaos-proxy.ts";
import { credentialsOf, specOf } from "./support/s3-under-test.ts";
import { credentialEnv, makeBucket, type S3Server } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";
import { storeErrorOf } from "./support/store-conformance.ts";

const directory = mkdtempSync(join(tmpdir(), "forebay-tls-"));
const file = (name: string) => join(directory, name);
let server: S3Server;
let bucket: string;
let proxy: ChaosProxy;

beforeAll(async () => {
  server = sharedS3();
  bucket = await makeBucket(server, "tls");
  execFileSync("openssl", [
    ...["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"],
    ...["-subj", "/CN=forebay-test", "-addext", "subjectAltName=IP:127.0.0.1"],
    ...["-keyout", file("key.pem"), "-out", file("cert.pem")],
  ]);
  const tls = { key: readFileSync(file("key.pem"), "utf8"), cert: readFileSync(file("cert.pem"), "utf8") };
  proxy = await startChaosProxy(server.endpoint, { tls });
});
afterAll(async () => {
  await proxy.stop();
  rmSync(directory, { recursive: true, force: true });
});

it("refuses a certificate that it cannot check, and says where a private authority goes", async () => {
  const store = await openStore(specOf(proxy, bucket, "untrusted"), { credentials: credentialsOf(server) });
  const error = await storeErrorOf(store.head("x"));
  expect(error).toMatchObject({ kind: "not-a-store", remedy: "stop" });
  expect(error.hint).toContain("NODE_EXTRA_CA_CERTS");
  expect(proxy.seen).toEqual([]);
  store.close();
});

it("says so where http is spoken to a TLS port and the other way round", async () => {
  for (const [endpoint, kind] of [
    [proxy.endpoint.replace("https", "http"), /^(corrupt-answer|unreachable)$/],
    [server.endpoint.replace("http", "https"), /^not-a-store$/],
  ] as const) {
    const store = await openStore(specOf({ endpoint }, bucket, "mixed"), {
      credentials: credentialsOf(server),
    });
    const error = await storeErrorOf(store.head("x"));
    expect(error.kind).toMatch(kind);
    expect(error.message).toContain(endpoint);
    store.close();
  }
});

it("carries 20 MiB over TLS in slices, with credentials from the environment, through the built program", async () => {
  const script = `
    const [open, { crc32c }] = await Promise.all([import(process.argv[1]), import(process.argv[2])]);
    const store = await open.openStore(JSON.parse(process.argv[3]));
    const body = Buffer.from(Uint32Array.from({ length: 5 * 2 ** 20 }, (_, i) => i).buffer);
    const put = await store.put("big", body, { crc32c: crc32c(body), createOnly: true });
    const buffers = [0, 1].map(() => Buffer.alloc(2 ** 19));
    const source = { byteLength: body.length, *slices() {
      for (let at = 0; at < body.length; at += 2 ** 19) {
        const into = buffers[(at / 2 ** 19) % 2];
        body.copy(into, 0, at);
        yield into;
      }
    } };
    const sent = await store.put("sent", source, { crc32c: crc32c(body), createOnly: true });
    const again = await store.put("big", body, { crc32c: crc32c(body), createOnly: true });
    const back = await store.get("big", null);
    const { bytes } = await store.head("big");
    console.log(JSON.stringify({ put: put.kind, sent: sent.kind, again: again.kind, same: back.equals(body), bytes }));
    store.close();
  `;
  const dist = new URL("../dist/", import.meta.url);
  const { stdout } = await promisify(execFile)(
    process.execPath,
    [
      ...["--input-type=module", "-e", script],
      ...[new URL("store/open.js", dist).href, new URL("base/checksum.js", dist).href],
      JSON.stringify(specOf(proxy, bucket, "tls")),
    ],
    { env: { ...credentialEnv(server), NODE_EXTRA_CA_CERTS: file("cert.pem"), PATH: process.env.PATH } },
  );
  expect(JSON.parse(stdout)).toEqual({
    put: "created",
    sent: "created",
    again: "exists",
    same: true,
    bytes: 20 * 2 ** 20,
  });
});
