import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer, type Server, type Socket } from "node:net";
import { dirname, join } from "node:path";
import { pathToFileURL } from "node:url";
import { GetObjectCommand } from "@aws-sdk/client-s3";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { EXIT } from "../src/base/errors.ts";
import type { Spool } from "../src/spool/spool.ts";
import { packKey } from "../src/store/keys.ts";
import type { StoreSpec } from "../src/store/store.ts";
import { makeBucket, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";
import {
  directorySpec,
  layoutOf,
  makeReady,
  makeRoot,
  openSpool,
  packOf,
  startUploader,
  type UploaderRig,
} from "./support/spool-rig.ts";

let root: string;
let remove: () => void;
let spool: Spool;
const rigs: UploaderRig[] = [];

beforeEach(async () => {
  ({ root, remove } = makeRoot());
  spool = await openSpool(join(root, "spool"));
});
afterEach(async () => {
  await Promise.all(rigs.splice(0).map(({ uploader }) => uploader.close()));
  await spool.close();
  remove();
});

function start(options: Partial<Parameters<typeof startUploader>[0]> & { spec: StoreSpec }): UploaderRig {
  const rig = startUploader({ spool, ...options });
  rigs.push(rig);
  return rig;
}

const objectPath = (batch: number) => join(root, "store/run", packKey(batch));
const readyFiles = () => readdirSync(join(spool.directory, "ready"));
function putBehindItsBack(batch: number, bytes: Uint8Array): void {
  mkdirSync(dirname(objectPath(batch)), { recursive: true });
  writeFileSync(objectPath(batch), bytes);
}

describe("the uploader, into a directory", () => {
  it("commits every pack byte for byte, deletes its file and gives its room back", async () => {
    const rig = start({ spec: directorySpec(root) });
    for (let batch = 0; batch < 30; batch += 1) rig.enqueue(await makeReady(spool, batch));
    await rig.uploader.idle();
    for (let batch = 0; batch < 30; batch += 1) {
      expect(readFileSync(objectPath(batch)).equals(packOf(batch).bytes)).toBe(true);
    }
    expect([readyFiles(), spool.usage().bytes]).toEqual([[], 0]);
    const stats = rig.uploader.stats();
    expect(stats).toMatchObject({
      queue: 0,
      inflight: 0,
      inflightBytes: 0,
      committed: 30,
      retries: 0,
      stuck: [],
    });
    expect(stats.requests).toContainEqual({ op: "put", outcome: "ok", count: 30 });
    expect(stats.stages.upload.busy).toBeGreaterThan(0);
    expect(rig.events.filter(({ kind }) => kind === "committed")).toHaveLength(30);
  });

  it("sends a spoiled pack to quarantine and asks for it to be computed again", async () => {
    const rig = start({ spec: directorySpec(root) });
    const pack = await makeReady(spool, 3);
    const bytes = readFileSync(pack.path);
    bytes[layoutOf(3).samples[1]!.statesByte]! ^= 1;
    writeFileSync(pack.path, bytes);
    rig.enqueue(pack);
    expect((await rig.event("requeue")).batch).toBe(3);
    expect([existsSync(objectPath(3)), spool.usage().quarantined]).toEqual([false, 1]);
    rig.enqueue(await makeReady(spool, 3));
    expect(await rig.event("committed")).toMatchObject({ batch: 3, how: "created" });
  });

  it("asks for a pack again whose file someone deleted", async () => {
    const rig = start({ spec: directorySpec(root) });
    const pack = await makeReady(spool, 3);
    rmSync(pack.path);
    rig.enqueue(pack);
    expect((await rig.event("requeue")).reason).toContain("gone from the spool");
    expect(spool.usage().bytes).toBe(0);
  });

  it("another run's pack at our key ends the run with exit 4, and every file is kept", async () => {
    putBehindItsBack(1, packOf(1, "cd".repeat(32)).bytes);
    const rig = start({ spec: directorySpec(root), uploads: 1 });
    const packs = [];
    for (const batch of [1, 2, 3]) packs.push(await makeReady(spool, batch));
    for (const pack of packs) rig.enqueue(pack);
    const { error } = await rig.event("failed");
    expect([error.exit, error.subject]).toEqual([EXIT.identity, packKey(1)]);
    await rig.uploader.idle();
    expect(readyFiles()).toHaveLength(3);
    expect(await rig.uploader.drain({ deadlineMs: 5_000 })).toEqual({ left: 3 });
  });

  it("a torn object blocks its own batch only, and is tried again until it was repaired", async () => {
    putBehindItsBack(1, packOf(1).bytes.subarray(0, 999));
    const rig = start({ spec: directorySpec(root) });
    for (const batch of [1, 2, 3]) rig.enqueue(await makeReady(spool, batch));
    const blocked = await rig.event("blocked");
    expect(blocked).toMatchObject({
      batch: 1,
      exit: EXIT.integrity,
      action: expect.stringContaining("repair"),
    });
    await rig.uploader.idle();
    expect([rig.uploader.stats().stuck, readyFiles()]).toEqual([[1], ["00000001.safetensors"]]);
    rmSync(objectPath(1));
    await rig.event("unblocked", ({ batch }) => batch === 1);
    await rig.event("committed", ({ batch }) => batch === 1);
    expect(rig.events.filter(({ kind }) => kind === "blocked")).toHaveLength(1);
    expect(readFileSync(objectPath(1)).equals(packOf(1).bytes)).toBe(true);
  });

  it("a thread that dies is replaced, and its packs are tried again", async () => {
    const counter = join(root, "deaths");
    mkdirSync(counter);
    const entry = join(root, "dying.mjs");
    const real = new URL("../dist/spool/upload-worker.js", import.meta.url).href;
    // The first three threads die with the first pack they are given.
    writeFileSync(
      entry,
      `import { readdirSync, writeFileSync } from "node:fs";
       import { parentPort } from "node:worker_threads";
       const deaths = readdirSync(${JSON.stringify(counter)}).length;
       if (deaths < 3) {
         writeFileSync(${JSON.stringify(counter)} + "/" + deaths, "");
         parentPort.on("message", () => process.exit(1));
       } else await import(${JSON.stringify(real)});`,
    );
    const rig = start({ spec: directorySpec(root), threads: 1, threadUrl: pathToFileURL(entry) });
    for (let batch = 0; batch < 8; batch += 1) rig.enqueue(await makeReady(spool, batch));
    await rig.uploader.idle();
    expect([rig.uploader.stats().committed, readdirSync(counter).length]).toEqual([8, 3]);
  });

  it("threads that only die end the run with a message, and every file is kept", async () => {
    const entry = join(root, "dead.mjs");
    writeFileSync(entry, `throw new Error("no such library");`);
    const rig = start({ spec: directorySpec(root), threads: 1, threadUrl: pathToFileURL(entry) });
    rig.enqueue(await makeReady(spool, 0));
    expect((await rig.event("failed")).error.message).toContain("no such library");
    await rig.uploader.idle();
    expect(readyFiles()).toHaveLength(1);
  });

  it("takes new limits while it runs, and refuses nonsense", async () => {
    const rig = start({ spec: directorySpec(root), uploads: 1 });
    rig.uploader.setLimits({ uploads: 200, inflightBytes: 5 * 2 ** 20 });
    expect(rig.uploader.stats()).toMatchObject({ limit: 200, uploads: 200 });
    rig.uploader.setLimits({ uploads: "auto" });
    expect(rig.uploader.stats()).toMatchObject({ uploads: "auto" });
    for (const uploads of [0, 1001, 1.5, Number.NaN]) {
      expect(() => rig.uploader.setLimits({ uploads })).toThrow('"auto" or a whole number from 1 to 1000');
    }
  });
});

describe("the uploader, into S3", () => {
  let proxy: Proxy;
  let bucket: string;
  let spec: StoreSpec;
  const credentials = () => join(root, "credentials");
  const before = { ...process.env };

  beforeEach(async () => {
    const server = sharedS3();
    bucket = await makeBucket(server, "spool");
    proxy = await startProxy(Number(new URL(server.endpoint).port));
    // Upload threads get a copy of this environment, as they do in the program.
    for (const name of Object.keys(process.env)) if (name.startsWith("AWS_")) delete process.env[name];
    process.env.AWS_SHARED_CREDENTIALS_FILE = credentials();
    process.env.AWS_CONFIG_FILE = "/dev/null";
    process.env.AWS_EC2_METADATA_DISABLED = "true";
    writeCredentials(server.accessKeyId, server.secretAccessKey);
    spec = {
      kind: "s3",
      bucket,
      prefix: "some/run",
      endpoint: `http://127.0.0.1:${proxy.port}`,
      region: "us-east-1",
      pathStyle: true,
      profile: null,
    };
  });
  afterEach(async () => {
    for (const name of Object.keys(process.env)) if (!(name in before)) delete process.env[name];
    Object.assign(process.env, before);
    await proxy.close();
  });

  function writeCredentials(id: string, secret: string): void {
    writeFileSync(credentials(), `[default]\naws_access_key_id = ${id}\naws_secret_access_key = ${secret}\n`);
  }

  async function expectStored(batches: number): Promise<void> {
    const client = s3Client(sharedS3());
    try {
      for (let batch = 0; batch < batches; batch += 1) {
        const { Body } = await client.send(
          new GetObjectCommand({ Bucket: bucket, Key: `some/run/${packKey(batch)}` }),
        );
        expect(Buffer.from(await Body!.transformToByteArray()).equals(packOf(batch).bytes)).toBe(true);
      }
    } finally {
      client.destroy();
    }
  }

  const checksum = {
    publish: "create-only",
    verify: "checksum",
    refusesWrongChecksum: true,
    notes: [],
  } as const;

  it("never makes an object of a file that is spoiled while it waits", async () => {
    const rig = start({ spec, traits: { ...checksum, notes: [] } });
    const pack = await makeReady(spool, 3);
    const bytes = readFileSync(pack.path);
    bytes[bytes.length - 1]! ^= 1;
    writeFileSync(pack.path, bytes);
    rig.enqueue(pack);
    expect((await rig.event("requeue")).reason).toContain("row 11 should have the CRC-32C");
    expect([spool.usage().quarantined, rig.uploader.stats().retries]).toEqual([1, 0]);
    // The key is free: a create-only PUT of the pack as it is computed again is the first.
    rig.enqueue(await makeReady(spool, 3));
    expect(await rig.event("committed")).toMatchObject({ batch: 3, how: "created" });
  });

  it("commits every pack, verified by the store's own checksum and nothing read back", async () => {
    const rig = start({ spec, traits: { ...checksum, notes: [] } });
    for (let batch = 0; batch < 20; batch += 1) rig.enqueue(await makeReady(spool, batch));
    await rig.uploader.idle();
    const ops = rig.uploader.stats().requests.map(({ op }) => op);
    expect(new Set(ops)).toEqual(new Set(["put", "head"]));
    expect([readyFiles(), spool.usage().bytes]).toEqual([[], 0]);
    await expectStored(20);
  });

  it("keeps every pack while the store is away, and sends them when it is back", async () => {
    const rig = start({ spec, traits: { ...checksum, notes: [] } });
    rig.enqueue(await makeReady(spool, 0));
    await rig.uploader.idle();
    await proxy.close();
    for (let batch = 1; batch < 15; batch += 1) rig.enqueue(await makeReady(spool, batch));
    await rig.event("down");
    expect([readyFiles().length, rig.uploader.stats().health]).toEqual([14, "down"]);
    await proxy.open();
    await rig.event("up");
    await rig.uploader.idle();
    expect(rig.uploader.stats()).toMatchObject({ committed: 15, health: "ok" });
    await expectStored(15);
  });

  it("a PUT whose answer is lost is found by a HEAD and not sent twice", async () => {
    const rig = start({ spec, uploads: 1, traits: { ...checksum, notes: [] } });
    rig.enqueue(await makeReady(spool, 0));
    await rig.uploader.idle();
    proxy.loseAnswers(1);
    rig.enqueue(await makeReady(spool, 1));
    await rig.event("committed", ({ batch }) => batch === 1);
    const stats = rig.uploader.stats();
    expect([
      stats.lostResponses,
      stats.requests.find((r) => r.op === "put" && r.outcome === "ok")?.count,
    ]).toEqual([1, 1]);
    await expectStored(2);
  });

  it("wrong credentials block with what to do, and are read again until they serve", async () => {
    const server = sharedS3();
    writeCredentials(server.accessKeyId, "not-the-secret");
    const rig = start({ spec, traits: { ...checksum, notes: [] } });
    for (let batch = 0; batch < 6; batch += 1) rig.enqueue(await makeReady(spool, batch));
    const blocked = await rig.event("blocked");
    expect(blocked).toMatchObject({ batch: null, exit: EXIT.store, action: expect.any(String) });
    expect(JSON.stringify(rig.events)).not.toContain("not-the-secret");
    expect([readyFiles().length, rig.uploader.stats().health]).toEqual([6, "blocked"]);
    writeCredentials(server.accessKeyId, server.secretAccessKey);
    await rig.event("unblocked");
    await rig.uploader.idle();
    await expectStored(6);
  });

  it("a graceful stop does not wait for a store that is silent", async () => {
    proxy.silence();
    const rig = start({ spec, traits: { ...checksum, notes: [] } });
    for (let batch = 0; batch < 6; batch += 1) rig.enqueue(await makeReady(spool, batch));
    expect(await rig.uploader.drain({ deadlineMs: 300 })).toEqual({ left: 6 });
    expect(readyFiles()).toHaveLength(6);
  });
});

interface Proxy {
  port: number;
  open(): Promise<void>;
  close(): Promise<void>;
  /** The next `count` answers of the server do not arrive: the connection ends instead. */
  loseAnswers(count: number): void;
  /** From now on requests are swallowed and nothing is answered. */
  silence(): void;
}

/** A TCP proxy on loopback that can go away and come back on the same port. */
async function startProxy(target: number): Promise<Proxy> {
  let server: Server | null = null;
  let port = 0;
  let lose = 0;
  let isSilent = false;
  const sockets = new Set<Socket>();
  const accept = (client: Socket) => {
    const upstream = connect(target, "127.0.0.1");
    for (const socket of [client, upstream]) {
      sockets.add(socket);
      socket.on("error", () => {});
      socket.on("close", () => {
        sockets.delete(socket);
        client.destroy();
        upstream.destroy();
      });
    }
    client.on("data", (data) => {
      if (!isSilent) upstream.write(data);
    });
    upstream.on("data", (data) => {
      if (lose > 0) {
        lose -= 1;
        client.destroy();
      } else client.write(data);
    });
  };
  const proxy: Proxy = {
    get port() {
      return port;
    },
    async open() {
      server = createServer(accept);
      await new Promise<void>((resolve) => server!.listen(port, "127.0.0.1", resolve));
      port = (server.address() as { port: number }).port;
    },
    async close() {
      const closing = server;
      server = null;
      for (const socket of sockets) socket.destroy();
      if (closing) await new Promise((resolve) => closing.close(resolve));
    },
    loseAnswers(count) {
      lose = count;
    },
    silence() {
      isSilent = true;
    },
  };
  await proxy.open();
  return proxy;
}
