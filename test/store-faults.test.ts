import { randomBytes } from "node:crypto";
import * as http from "node:http";
import type { AddressInfo } from "node:net";
import { GetObjectCommand, PutObjectCommand } from "@aws-sdk/client-s3";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { crc32c } from "../src/base/checksum.ts";
import { silentLog } from "../src/base/log.ts";
import { openStore } from "../src/store/open.ts";
import { probeStore } from "../src/store/probe.ts";
import { withRetries } from "../src/store/retry.ts";
import type { S3Options } from "../src/store/s3.ts";
import type { BodySource, OpenedStore } from "../src/store/store.ts";
import { verifyObject } from "../src/store/verify-object.ts";
import { type ChaosProxy, type Rule, startChaosProxy } from "./support/chaos-proxy.ts";
import { credentialsOf, specOf } from "./support/s3-under-test.ts";
import { makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";
import { keys, put, storeErrorOf } from "./support/store-conformance.ts";

let server: S3Server;
let bucket: string;
let proxy: ChaosProxy;
const opened: OpenedStore[] = [];

beforeAll(async () => {
  server = sharedS3();
  bucket = await makeBucket(server, "faults");
  proxy = await startChaosProxy(server.endpoint);
});
afterEach(() => {
  proxy.clear();
  for (const store of opened.splice(0)) store.close();
});
afterAll(() => proxy.stop());

/** A store of its own behind the proxy (or straight at the server). */
async function open(name: string, options: S3Options = {}, through: { endpoint: string } = proxy) {
  const store = await openStore(specOf(through, bucket, name), {
    credentials: credentialsOf(server),
    ...options,
  });
  opened.push(store);
  return store;
}

/** For a server that will never answer: nothing else may depend on how fast this machine is today. */
const quick = { limits: { connectMs: 300, idleMs: 300, baseMs: 600 } };
const patient = { limits: { idleMs: 1_500, baseMs: 20_000 } };
const body = randomBytes(300_000);
const object = { key: "x", bytes: body.length, crc32c: crc32c(body) };
const byChecksum = { verify: "checksum" } as const;

describe("a PUT whose answer is lost", () => {
  it("meets 412 on the second try, and is found to be ours by the separate check", async () => {
    const store = await open("lost");
    const rule = proxy.add({ method: "PUT", times: 1, toxic: { kind: "lost_response" } });
    expect(await storeErrorOf(put(store, "x", body))).toMatchObject({ kind: "unreachable", remedy: "retry" });
    expect(rule.hits).toBe(1);
    expect(await put(store, "x", body)).toEqual({ kind: "exists" });
    expect(await verifyObject(store, byChecksum, object)).toEqual({ kind: "same" });
  });
});

describe("a PUT from a source", () => {
  /** Hands out `bytes` through two buffers in turn, as a file is sent; each is overwritten as soon as it may be. */
  function sourceOf(bytes: Buffer, failure?: { atByte: number; error: Error }): BodySource {
    const sliceBytes = 100_000;
    const buffers = [Buffer.alloc(sliceBytes), Buffer.alloc(sliceBytes)];
    return {
      byteLength: bytes.length,
      *slices() {
        for (let at = 0, turn = 0; at < bytes.length; at += sliceBytes, turn = 1 - turn) {
          if (failure && at >= failure.atByte) throw failure.error;
          const copied = bytes.copy(buffers[turn]!, 0, at, at + sliceBytes);
          yield buffers[turn]!.subarray(0, copied);
        }
      },
    };
  }
  const big = randomBytes(12_345_678);
  const options = { crc32c: crc32c(big), createOnly: true };

  it("makes the same object as one from memory", async () => {
    const store = await open("source");
    expect(await store.put("memory", big, options)).toMatchObject({ kind: "created" });
    expect(await store.put("source", sourceOf(big), options)).toMatchObject({ kind: "created" });
    expect((await store.get("source", null))!.equals(big)).toBe(true);
    const both = await Promise.all([store.head("memory"), store.head("source")]);
    expect(both[1]).toMatchObject({ bytes: both[0]!.bytes, etag: both[0]!.etag, crc32c: options.crc32c });
    expect(await store.put("source", sourceOf(big), options)).toEqual({ kind: "exists" });
  });

  it("is the same request as one from memory, of known length and not chunked", async () => {
    const heard: http.IncomingHttpHeaders[] = [];
    const listener = http.createServer((incoming, outgoing) => {
      heard.push(incoming.headers);
      incoming.resume().once("end", () => outgoing.end());
    });
    await new Promise<void>((resolve) => listener.listen(0, "127.0.0.1", resolve));
    try {
      const endpoint = `http://127.0.0.1:${(listener.address() as AddressInfo).port}`;
      const store = await open("headers", { nowMs: () => 1.7e12 }, { endpoint });
      await store.put("x", big, options);
      await store.put("x", sourceOf(big), options);
    } finally {
      listener.closeAllConnections();
      listener.close();
    }
    expect(heard[0]).toMatchObject({ "content-length": String(big.length), "if-none-match": "*" });
    expect(heard[0]).not.toHaveProperty("transfer-encoding");
    expect(heard[1]).toEqual(heard[0]);
  });

  it("ends with the source's own error and no object, and the store goes on", async () => {
    const store = await open("failing-source");
    for (const atByte of [0, 100_000, 6_000_000, 12_300_000]) {
      const error = new Error(`the disk failed at ${atByte}`);
      await expect(store.put("x", sourceOf(big, { atByte, error }), options)).rejects.toBe(error);
      expect(await store.head("x")).toBeNull();
    }
    expect(await store.put("x", sourceOf(big), options)).toMatchObject({ kind: "created" });
  });

  it("asks its source for nothing after it failed", async () => {
    const store = await open("cut-source");
    proxy.add({ method: "PUT", times: 1, toxic: { kind: "limit_data", bytes: 1_000_000 } });
    let isOver = false;
    let askedLate = false;
    const source = sourceOf(big);
    const watched = {
      byteLength: source.byteLength,
      *slices() {
        for (const slice of source.slices()) {
          askedLate ||= isOver;
          yield slice;
        }
      },
    };
    const attempt = store.put("x", watched, options).finally(() => {
      isOver = true;
    });
    expect(await storeErrorOf(attempt)).toMatchObject({ kind: "unreachable", remedy: "retry" });
    expect(await store.put("x", big, options)).toMatchObject({ kind: "created" });
    expect(askedLate).toBe(false);
  });
});

describe("a PUT that is cut in the middle", () => {
  it("leaves nothing on a server that checks, and succeeds when sent again", async () => {
    const store = await open("cut");
    proxy.add({ method: "PUT", times: 1, toxic: { kind: "limit_data", bytes: 100_000 } });
    expect(await storeErrorOf(put(store, "x", body))).toMatchObject({ kind: "unreachable", remedy: "retry" });
    expect(await verifyObject(store, byChecksum, object)).toEqual({ kind: "missing" });
    expect(await put(store, "x", body)).toMatchObject({ kind: "created" });
    expect(await verifyObject(store, byChecksum, object)).toEqual({ kind: "same" });
  });

  it("is not believed where the server kept the torn half: 412, then another size", async () => {
    const store = await open("torn");
    const client = s3Client(server);
    const keep = async (path: string, bytes: Buffer) => {
      const Key = path.slice(`/${bucket}/`.length);
      await client.send(new PutObjectCommand({ Bucket: bucket, Key, Body: bytes }));
    };
    proxy.add({ method: "PUT", times: 1, toxic: { kind: "torn_put", bytes: 100_000, keep } });
    await storeErrorOf(put(store, "x", body));
    expect(await put(store, "x", body)).toEqual({ kind: "exists" });
    expect(await verifyObject(store, byChecksum, object)).toEqual({
      kind: "different",
      found: "expected 300000 bytes, found 100000",
    });
    client.destroy();
  });
});

describe("bytes that change on the way", () => {
  it("are refused at the PUT, since the checksum travels beside them", async () => {
    const store = await open("flip-up");
    proxy.add({ method: "PUT", times: 1, toxic: { kind: "flip_byte", direction: "up" } });
    expect(await storeErrorOf(put(store, "x", body))).toMatchObject({
      kind: "refused-checksum",
      remedy: "retry",
    });
    expect(await store.head("x")).toBeNull();
  });

  it("do not fool the readback", async () => {
    const store = await open("flip-down");
    await put(store, "x", body);
    proxy.add({ method: "GET", times: 1, toxic: { kind: "flip_byte", direction: "down" } });
    expect(await verifyObject(store, { verify: "readback" }, object)).toMatchObject({ kind: "different" });
    expect(await verifyObject(store, { verify: "readback" }, object)).toEqual({ kind: "same" });
  });

  it("do not pass as an ETag that matches", async () => {
    const store = await open("etag");
    const md5 = "ab".repeat(16);
    await put(store, "x", body);
    proxy.add({ toxic: { kind: "wrong_etag" } });
    expect(await verifyObject(store, { verify: "etag" }, { ...object, md5 })).toMatchObject({
      kind: "different",
    });
  });
});

describe("an answer that is cut", () => {
  it("is no object, whether the connection breaks or the length lies", async () => {
    const store = await open("short");
    await put(store, "x", body);
    proxy.add({ method: "GET", times: 1, toxic: { kind: "limit_data", bytes: 1_000 } });
    expect((await storeErrorOf(store.get("x", { startByte: 0, endByte: 300_000 }))).remedy).toBe("retry");
    proxy.add({ method: "GET", times: 1, toxic: { kind: "truncate", bytes: 1_000 } });
    expect(await storeErrorOf(store.get("x", { startByte: 0, endByte: 300_000 }))).toMatchObject({
      kind: "corrupt-answer",
      remedy: "retry",
    });
    expect((await store.get("x", { startByte: 0, endByte: 300_000 }))!.equals(body)).toBe(true);
  });
});

describe("a server that says nothing", () => {
  it.each(["put", "head", "get", "list", "delete"] as const)("ends a %s at our own deadline", async (op) => {
    const store = await open("silent", quick);
    proxy.add({ toxic: { kind: "timeout" } });
    const calls = {
      put: () => put(store, "x", body),
      head: () => store.head("x"),
      get: () => store.get("x", null),
      list: () => keys(store.list("")),
      delete: () => store.delete("x"),
    };
    expect(await storeErrorOf(calls[op]())).toMatchObject({ kind: "timeout", remedy: "retry" });
  });

  it("lets the caller's abort through at once, with its reason, and closes the connection", async () => {
    const store = await open("abort");
    const rule = proxy.add({ toxic: { kind: "timeout" } });
    const abort = new AbortController();
    const reason = new Error("a person pressed ^C");
    const pending = store.put("x", body, { crc32c: crc32c(body), createOnly: true, signal: abort.signal });
    await rule.struck(1);
    abort.abort(reason);
    await expect(pending).rejects.toBe(reason);
  });
});

describe("a slow server", () => {
  it("is waited for while bytes still move", async () => {
    const store = await open("slow", patient);
    await put(store, "x", body.subarray(0, 4_000));
    proxy.add({ method: "GET", times: 1, toxic: { kind: "slicer", bytes: 500, ms: 250 } });
    // Two seconds in all, with never more than a quarter of one between two pieces.
    const found = await store.get("x", { startByte: 0, endByte: 4_000 });
    expect(found!.equals(body.subarray(0, 4_000))).toBe(true);
    proxy.add({ method: "HEAD", times: 1, toxic: { kind: "latency", ms: 100, jitterMs: 50 } });
    expect((await store.head("x"))!.bytes).toBe(4_000);
    proxy.add({ method: "GET", times: 1, toxic: { kind: "slow_close", ms: 100 } });
    expect((await store.get("x", null))!.length).toBe(4_000);
    proxy.add({ method: "GET", times: 1, toxic: { kind: "bandwidth", bytesPerSecond: 40_000 } });
    expect((await store.get("x", null))!.length).toBe(4_000);
  });
});

describe("what the store answers", () => {
  it.each([
    [
      { status: 503, code: "SlowDown", retryAfterS: 7 },
      { kind: "throttled", remedy: "retry", retryAfterMs: 7_000 },
    ],
    [{ status: 429 }, { kind: "throttled", remedy: "retry" }],
    [
      { status: 500, code: "InternalError" },
      { kind: "unavailable", remedy: "retry" },
    ],
    [
      { status: 502, html: true },
      { kind: "unavailable", remedy: "retry" },
    ],
    [
      { status: 503, html: true, retryAfterS: 1 },
      { kind: "unavailable", retryAfterMs: 1_000 },
    ],
    [
      { status: 409, code: "ConditionalRequestConflict" },
      { kind: "conflict", remedy: "retry" },
    ],
    [
      { status: 400, code: "BadDigest" },
      { kind: "refused-checksum", remedy: "retry" },
    ],
    [
      { status: 400, code: "RequestTimeout" },
      { kind: "timeout", remedy: "retry" },
    ],
    [
      { status: 403, code: "ExpiredToken" },
      { kind: "credentials", remedy: "stop" },
    ],
    [
      { status: 403, code: "AccessDenied" },
      { kind: "denied", remedy: "stop" },
    ],
    [
      { status: 403, code: "RequestTimeTooSkewed" },
      { kind: "clock", remedy: "stop" },
    ],
    [
      { status: 404, code: "NoSuchBucket" },
      { kind: "no-bucket", remedy: "stop" },
    ],
    [
      { status: 301, code: "PermanentRedirect" },
      { kind: "no-bucket", remedy: "stop" },
    ],
    [
      { status: 501, code: "NotImplemented" },
      { kind: "unsupported", remedy: "stop" },
    ],
    [{ status: 507 }, { kind: "full", remedy: "stop" }],
    [
      { status: 200, html: true },
      { kind: "not-a-store", remedy: "stop" },
    ],
    [
      { status: 404, html: true },
      { kind: "not-a-store", remedy: "stop" },
    ],
  ])("%j means the same to a PUT and to a LIST", async (answer, expected) => {
    const store = await open("answers");
    proxy.add({ toxic: { kind: "status", ...answer } });
    expect(await storeErrorOf(put(store, "x", body))).toMatchObject(expected);
    const error = await storeErrorOf(keys(store.list("")));
    expect(error).toMatchObject(expected);
    expect(error.exit).toBe(expected.kind === "full" ? 8 : 6);
  });

  it("is looked at although it began with 200", async () => {
    const store = await open("late-error");
    proxy.add({ toxic: { kind: "error_in_200", code: "InternalError" } });
    expect(await storeErrorOf(put(store, "x", body))).toMatchObject({ kind: "unavailable", remedy: "retry" });
    expect((await storeErrorOf(keys(store.list("")))).remedy).toBe("retry");
  });

  it("keeps its status, code and nothing of the credentials in the error", async () => {
    const store = await open("allow-list");
    proxy.add({ toxic: { kind: "status", status: 403, code: "AccessDenied" } });
    const error = await storeErrorOf(put(store, "x", body));
    expect(error).toMatchObject({ status: 403, code: "AccessDenied" });
    const told = JSON.stringify({ ...error, message: error.message });
    expect(told).not.toContain(server.accessKeyId);
    expect(told).not.toContain("Credential=");
  });
});

describe("a LIST that is stale", () => {
  it("misses an object, which HEAD and the create-only PUT still know", async () => {
    const store = await open("stale");
    await put(store, "packs/a", body);
    await put(store, "packs/b", body);
    proxy.add({ path: /list-type=2/, toxic: { kind: "stale_list", hide: /packs\/b$/ } });
    expect(await keys(store.list("packs/"))).toEqual(["packs/a"]);
    expect((await store.head("packs/b"))!.bytes).toBe(body.length);
    expect(await put(store, "packs/b", body)).toEqual({ kind: "exists" });
  });
});

describe("retries", () => {
  it("outlast a storm of seeded faults, and the object is whole in the end", async () => {
    const store = await open("storm", patient);
    console.log(`chaos seed ${proxy.seed}`);
    for (const toxic of [
      { kind: "reset_peer" },
      { kind: "lost_response" },
      { kind: "limit_data", bytes: 50_000 },
      { kind: "flip_byte", direction: "up" },
      { kind: "status", status: 503, code: "SlowDown" },
      { kind: "timeout", ms: 50 },
    ] as const) {
      proxy.add({ probability: 0.15, toxic });
    }
    const retries: string[] = [];
    const options = { log: silentLog, random: () => 0.05, onRetry: (e: Error) => retries.push(e.message) };
    for (let i = 0; i < 20; i += 1) {
      await withRetries(() => put(store, `storm/${i}`, body), options);
      const check = () => verifyObject(store, byChecksum, { ...object, key: `storm/${i}` });
      expect(await withRetries(check, options)).toEqual({ kind: "same" });
    }
    expect(retries.length).toBeGreaterThan(0);
  });

  it("leave at once what does not pass by itself", async () => {
    const store = await open("no-retry");
    const rule = proxy.add({ toxic: { kind: "status", status: 403, code: "AccessDenied" } });
    const call = withRetries(() => put(store, "x", body), { log: silentLog, random: Math.random });
    expect(await storeErrorOf(call)).toMatchObject({ kind: "denied" });
    expect(rule.hits).toBe(1);
  });
});

describe("the probe", () => {
  it("calls a store that answers 501 to conditions an overwriting one", async () => {
    const store = await open("probe-501");
    proxy.add({ method: "PUT", nth: 1, toxic: { kind: "status", status: 501, code: "NotImplemented" } });
    const traits = await probeStore(store, { log: silentLog, random: Math.random });
    expect(traits.publish).toBe("overwrite");
    expect(traits.notes[0]).toContain("only one machine may write");
    expect(await keys(store.list(""))).toEqual([]);
  });

  it.each([
    [
      "lost answers and throttling",
      [
        ...[1, 3, 20].map((nth): Rule => ({ nth, toxic: { kind: "lost_response" } })),
        { nth: 5, toxic: { kind: "status", status: 503, code: "SlowDown" } },
      ],
    ],
    [
      // A rule does not count the requests that those before it strike.
      "a connection that breaks at every second read",
      [1, 2, 3, 4, 5, 6].map((nth): Rule => ({ nth, method: "GET", toxic: { kind: "reset_peer" } })),
    ],
  ] satisfies [string, Rule[]][])("finds the same traits through %s", async (_, rules) => {
    const store = await open(`probe-${rules.length}`);
    for (const rule of rules) proxy.add(rule);
    const traits = await probeStore(store, { log: silentLog, random: () => 0.05 });
    expect(traits).toEqual({
      publish: "create-only",
      verify: "checksum",
      refusesWrongChecksum: true,
      notes: [],
    });
  });
});

describe("a store that cannot be used", () => {
  const probing = { log: silentLog, random: Math.random, deadlineMs: 500 };

  it("is named where its bucket does not exist, and no bucket appears", async () => {
    const store = await openStore(specOf(server, "no-such-bucket", "x"), {
      credentials: credentialsOf(server),
    });
    opened.push(store);
    for (const call of [() => probeStore(store, probing), () => put(store, "x", body)]) {
      const error = await storeErrorOf(call());
      expect(error).toMatchObject({ kind: "no-bucket", remedy: "stop", exit: 6 });
      expect(error.message).toContain('there is no bucket "no-such-bucket"');
      expect(error.hint).toContain("create it");
    }
  });

  it("is named where the credentials are wrong", async () => {
    for (const wrong of [
      { accessKeyId: server.accessKeyId, secretAccessKey: "not-the-secret" },
      { accessKeyId: "nobody", secretAccessKey: server.secretAccessKey },
    ]) {
      const store = await open("wrong-key", { credentials: async () => wrong });
      const error = await storeErrorOf(put(store, "x", body));
      expect(error).toMatchObject({ kind: "credentials", remedy: "stop", exit: 6 });
      expect(error.hint).toContain("AWS_ACCESS_KEY_ID");
      expect((await storeErrorOf(probeStore(store, probing))).kind).toMatch(/^(credentials|denied)$/);
    }
    expect(await keys((await open("wrong-key")).list(""))).toEqual([]);
  });

  it("is named where there are no credentials at all", async () => {
    const none = async () => {
      throw Object.assign(new Error("Could not load credentials from any providers"), {
        name: "CredentialsProviderError",
      });
    };
    const store = await open("no-key", { credentials: none });
    for (const call of [() => put(store, "x", body), () => keys(store.list(""))]) {
      expect(await storeErrorOf(call())).toMatchObject({
        kind: "credentials",
        message: "found no credentials for the store",
      });
    }
  });

  it.each([-60, 60])("is named where this machine's clock is %i minutes off", async (minutes) => {
    const store = await open("clock", { nowMs: () => Date.now() + minutes * 60_000 });
    const direction = minutes > 0 ? "ahead of" : "behind";
    for (const call of [() => put(store, "x", body), () => store.head("x"), () => keys(store.list(""))]) {
      const error = await storeErrorOf(call());
      expect(error).toMatchObject({ kind: "clock", remedy: "stop" });
      expect(error.message).toMatch(new RegExp(`clock is (59|60|61) minutes ${direction} the store's`));
      expect(error.hint).toContain("NTP");
    }
  });

  it("is named where the endpoint is a web page", async () => {
    const store = await open("html");
    proxy.add({ toxic: { kind: "status", status: 200, html: true } });
    for (const call of [
      () => probeStore(store, probing),
      () => store.head("x"),
      () => store.get("x", null),
      () => keys(store.list("")),
    ]) {
      const error = await storeErrorOf(call());
      expect(error).toMatchObject({ kind: "not-a-store", exit: 6 });
      expect(error.hint).toContain("--endpoint");
    }
  });

  it("is named where nothing listens", async () => {
    const gone = await startChaosProxy(server.endpoint);
    await gone.stop();
    const store = await open("gone", {}, gone);
    for (const call of [
      () => probeStore(store, probing),
      () => put(store, "x", body),
      () => keys(store.list("")),
    ]) {
      const error = await storeErrorOf(call());
      expect(error).toMatchObject({ kind: "unreachable", remedy: "retry" });
      expect(error.message).toContain(`nothing listens at ${gone.endpoint}`);
    }
  });
});

it("changes nothing that it only carries: the proxy without rules is transparent", async () => {
  const store = await open("plain");
  await put(store, "x", body);
  const client = s3Client(server);
  const { Body, ContentEncoding } = await client.send(
    new GetObjectCommand({ Bucket: bucket, Key: "plain/x" }),
  );
  expect(Buffer.from(await Body!.transformToByteArray()).equals(body)).toBe(true);
  expect(ContentEncoding).toBeUndefined();
  client.destroy();
});
