import { createHash } from "node:crypto";
import { existsSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { DeleteObjectCommand, PutObjectCommand } from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type ChaosProxy, startChaosProxy } from "./support/chaos-proxy.ts";
import {
  events,
  expectWhole,
  type FaultyRun,
  faultyRun,
  logged,
  packsOf,
  sickEngines,
  startRun,
  statusWhere,
} from "./support/faults.ts";
import { runArgs } from "./support/kills.ts";
import { makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/** What becomes of a run whose store fails in the ways of reliability, through the built program and a real server. */

let server: S3Server;
let bucket: string;
let expected: Map<string, string>;
const opened: { run: FaultyRun; proxy: ChaosProxy }[] = [];

beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "faults");
  const { run } = await open("reference");
  const ended = await startRun(run).ended;
  expect(ended.code, ended.stderr).toBe(0);
  expected = await packsOf(run);
  expect(expected.size).toBeGreaterThanOrEqual(10);
});
afterAll(async () => {
  for (const { run, proxy } of opened) {
    await proxy.stop();
    await run.machine.remove();
  }
});

/** A run on a machine and behind a proxy of its own. */
async function open(name: string): Promise<{ run: FaultyRun; proxy: ChaosProxy }> {
  const proxy = await startChaosProxy(server.endpoint);
  const run = faultyRun(name, { server, bucket, endpoint: proxy.endpoint });
  opened.push({ run, proxy });
  return { run, proxy };
}

function batchOf(key: string): number {
  return Number(/(\d+)\.safetensors$/.exec(key)![1]);
}

/** Of the packs, finished or not, by their full sizes; one that is renamed while we look is counted once. */
function bytesBelow(spool: string): number {
  const bytes = new Map<string, number>();
  for (const folder of ["parts", "ready", "quarantine"]) {
    const directory = join(spool, folder);
    if (!existsSync(directory)) continue;
    for (const name of readdirSync(directory)) {
      bytes.set(name.slice(0, 8), statSync(join(directory, name), { throwIfNoEntry: false })?.size ?? 0);
    }
  }
  return [...bytes.values()].reduce((sum, size) => sum + size, 0);
}

const PACK = /\/packs\//;

describe("a store that", () => {
  test("loses its answers to PUTs: the 412 of the next try is known as our own object", async () => {
    const { run, proxy } = await open("lost-answers");
    proxy.add({ toxic: { kind: "lost_response" }, method: "PUT", path: PACK, times: 4 });
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(events(run, "batch.committed").filter(({ how }) => how === "ours").length).toBe(4);
    await expectWhole(run, expected);
  });

  test("says it has a pack that it does not have: no spool file goes before a separate request found it", async () => {
    const { run, proxy } = await open("lies");
    const lie = proxy.add({ toxic: { kind: "swallow" }, method: "PUT", path: PACK, times: 3 });
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(lie.hits).toBe(3);
    await expectWhole(run, expected);
  });

  test("keeps another object than was sent: found by its separate check", async () => {
    const { run, proxy } = await open("flips");
    const flip = proxy.add({
      toxic: { kind: "flip_byte", direction: "up" },
      method: "PUT",
      path: PACK,
      times: 3,
    });
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(flip.hits).toBe(3);
    await expectWhole(run, expected);
  });
});

test("a truncated object left by a cut PUT is named, keeps the others from nothing, and waits to be removed", async () => {
  const { run, proxy } = await open("torn");
  const client = s3Client(server);
  let torn = "";
  const keep = async (path: string, bytes: Buffer) => {
    torn = path.replace(`/${bucket}/`, "").replace(/\?.*/, "");
    await client.send(new PutObjectCommand({ Bucket: bucket, Key: torn, Body: bytes }));
  };
  proxy.add({ toxic: { kind: "torn_put", bytes: 1_000, keep }, method: "PUT", path: PACK, times: 1 });
  const ended = await startRun(run).ended;
  expect(ended.code, ended.stderr).toBe(9);
  expect(ended.stderr).toContain(torn.replace(`p/${run.name}/`, ""));
  expect(ended.stderr).toMatch(/ {2}safe: .*\n {2}next: /);
  const stored = await packsOf(run);
  expect(stored.size).toBe(expected.size);
  const engines = events(run, "engine.hello").length;
  // The same command again finds it again, and overwrites nothing.
  const again = await startRun(run).ended;
  expect(again.code, again.stderr).toBe(9);
  expect(await packsOf(run)).toEqual(stored);
  await client.send(new DeleteObjectCommand({ Bucket: bucket, Key: torn }));
  const mended = await startRun(run).ended;
  expect(mended.code, mended.stderr).toBe(0);
  // It waited in the spool: no engine was needed.
  expect(events(run, "engine.hello").length).toBe(engines);
  await expectWhole(run, expected);
});

test("an object that somebody else puts under one of our keys meanwhile is named, and never overwritten", async () => {
  const { run } = await open("alien");
  const running = startRun(run, ...sickEngines({ delayMs: 300 }));
  await logged(run, running, "batch.committed");
  const key = [...expected.keys()].sort((a, b) => batchOf(a) - batchOf(b)).at(-1)!;
  const alien = Buffer.from("not a pack");
  await s3Client(server).send(
    new PutObjectCommand({ Bucket: bucket, Key: `p/${run.name}/${key}`, Body: alien }),
  );
  const ended = await running.ended;
  expect(ended.code, ended.stderr).toBe(9);
  expect(ended.stderr).toContain(key);
  const stored = await packsOf(run);
  expect(stored.get(key)).toBe(createHash("sha256").update(alien).digest("hex"));
  expect(stored.size).toBe(expected.size);
  const verified = await run.machine.run(["verify", run.address, "--json", "--endpoint", server.endpoint]);
  expect(verified.code, verified.stderr).toBe(9);
  expect(JSON.parse(verified.stdout)).toMatchObject({ ok: false, faults: [{ key }] });
});

test("a slow store: the spool never holds more than --spool-bytes, and the engines wait", async () => {
  const { run, proxy } = await open("slow");
  proxy.add({ toxic: { kind: "latency", ms: 500 }, method: "PUT", path: PACK });
  // Three packs, which is the least for one engine; ten are to be made.
  const spoolBytes = 3 * 48 * 1024;
  const args = runArgs(run).map((word, i, all) => (all[i - 1] === "--spool-bytes" ? `${spoolBytes}B` : word));
  const running = run.machine.start([...args, "--uploads", "1"]);
  let most = 0;
  const watch = setInterval(() => {
    most = Math.max(most, bytesBelow(run.machine.path("spool")));
  }, 5);
  const ended = await running.ended;
  clearInterval(watch);
  expect(ended.code, ended.stderr).toBe(0);
  expect(most).toBeGreaterThan(spoolBytes / 2);
  expect(most).toBeLessThanOrEqual(spoolBytes);
  await expectWhole(run, expected);
});

test("a store that goes away and comes back: shown as blocked, then whole, by the same process", async () => {
  const { run, proxy } = await open("away");
  proxy.add({ toxic: { kind: "latency", ms: 100 }, method: "PUT", path: PACK });
  const running = startRun(run);
  await logged(run, running, "batch.committed");
  const { port } = new URL(proxy.endpoint);
  await proxy.stop();
  const blocked = await statusWhere(run, running, ({ run: { state } }) => state === "blocked");
  expect(blocked.run.reason).toMatch(/does not serve/);
  expect(blocked.run.action).toBeTruthy();
  const back = await startChaosProxy(server.endpoint, { port: Number(port) });
  try {
    const ended = await running.ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(run, expected);
  } finally {
    await back.stop();
  }
});

test("a store that stays away: --max-blocked gives up with 75, and the same command goes on later", async () => {
  const { run, proxy } = await open("stays-away");
  proxy.add({ toxic: { kind: "latency", ms: 100 }, method: "PUT", path: PACK });
  const running = startRun(run, "--max-blocked", "2s");
  await logged(run, running, "batch.committed");
  proxy.clear();
  proxy.add({ toxic: { kind: "reset_peer" } });
  const ended = await running.ended;
  expect(ended.code, ended.stderr).toBe(75);
  expect(ended.stderr).toMatch(/--max-blocked/);
  proxy.clear();
  const later = await startRun(run).ended;
  expect(later.code, later.stderr).toBe(0);
  await expectWhole(run, expected);
});

test("a pack that is spoiled in the spool is found while it is read for the store, kept aside, and made again", async () => {
  const { run } = await open("spoiled");
  const ended = await startRun(run, ...sickEngines({ mode: "flip", once: run.machine.path("flipped-once") }))
    .ended;
  expect(ended.code, ended.stderr).toBe(0);
  expect(events(run, "batch.requeued").length).toBe(1);
  expect(readdirSync(run.machine.path("spool/quarantine")).length).toBe(1);
  expect(await packsOf(run)).toEqual(expected);
});

// These wait for the program's own long pauses (30 s of silence, a minute between questions): side by side.
describe.concurrent("a store that in the long run", { timeout: 300_000 }, () => {
  test("throttles, fails and answers errors in 200: slower, and whole", async () => {
    const { run, proxy } = await open("slow-down");
    const put = { method: "PUT", path: PACK };
    const rules = [
      proxy.add({
        toxic: { kind: "status", status: 503, code: "SlowDown", retryAfterS: 1 },
        ...put,
        times: 3,
      }),
      proxy.add({ toxic: { kind: "status", status: 500, code: "InternalError" }, ...put, times: 3 }),
      proxy.add({ toxic: { kind: "error_in_200", code: "InternalError" }, ...put, times: 3 }),
      proxy.add({ toxic: { kind: "status", status: 502, html: true }, ...put, times: 2 }),
      proxy.add({ toxic: { kind: "reset_peer" }, method: "HEAD", path: PACK, times: 3 }),
    ];
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    expect(rules.map(({ hits }) => hits)).toEqual([3, 3, 3, 2, 3]);
    await expectWhole(run, expected);
  });

  test("is struck by everything at once, by chance", async () => {
    const { run, proxy } = await open("storm");
    console.log(`storm: proxy seed ${proxy.seed}`);
    const probability = 0.04;
    for (const method of ["PUT", "HEAD", "GET"]) {
      proxy.add({ toxic: { kind: "reset_peer" }, method, probability });
      proxy.add({ toxic: { kind: "status", status: 503, code: "SlowDown" }, method, probability });
      proxy.add({ toxic: { kind: "latency", ms: 200, jitterMs: 300 }, method, probability });
    }
    proxy.add({ toxic: { kind: "lost_response" }, method: "PUT", probability });
    proxy.add({ toxic: { kind: "limit_data", bytes: 10_000 }, method: "PUT", path: PACK, probability });
    proxy.add({
      toxic: { kind: "error_in_200", code: "InternalError" },
      method: "PUT",
      path: PACK,
      probability,
    });
    proxy.add({ toxic: { kind: "wrong_etag" }, probability });
    const ended = await startRun(run).ended;
    expect(ended.code, `seed ${proxy.seed}\n${ended.stderr}`).toBe(0);
    await expectWhole(run, expected);
  });

  test("falls silent is left for a fresh attempt", async () => {
    const { run, proxy } = await open("silent");
    proxy.add({ toxic: { kind: "timeout" }, method: "PUT", path: PACK, times: 2 });
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(run, expected);
  });

  test("does not take the credentials any more: blocked with the action to take, and by itself again when they are good", {
    timeout: 180_000,
  }, async () => {
    const { run, proxy } = await open("expired");
    proxy.add({ toxic: { kind: "latency", ms: 100 }, method: "PUT", path: PACK });
    const running = startRun(run);
    await logged(run, running, "batch.committed");
    proxy.clear();
    proxy.add({ toxic: { kind: "status", status: 403, code: "ExpiredToken" } });
    const blocked = await statusWhere(run, running, ({ run: { state } }) => state === "blocked");
    expect(blocked.run.reason).toMatch(/credentials/);
    expect(blocked.run.action).toMatch(/AWS_ACCESS_KEY_ID|profile/);
    proxy.clear();
    const ended = await running.ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(run, expected);
  });
});
