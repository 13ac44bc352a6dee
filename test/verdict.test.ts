import { spawn, spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeAll, beforeEach, expect, onTestFinished, test } from "vitest";
import type { StatusDocument } from "../src/run/status.ts";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { DEMO, Machine } from "./support/program.ts";
import { credentialEnv, freePorts, makeBucket, type S3Server } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";
import { type SlowStore, startSlowStore } from "./support/slow-store.ts";

/**
 * Real runs, each slowed at one place: the page's verdict names it, and its advice, when followed, helps. Times are
 * only limits to how long a thing is waited for.
 */
const PATIENCE_MS = 90_000;
const ROWS = 40_000;

let server: S3Server;
let bucket: string;
let machine: Machine;
let store: SlowStore;

beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "verdict");
});
beforeEach(async () => {
  machine = new Machine(credentialEnv(server));
  store = await startSlowStore(server.endpoint);
  const random = mulberry32(7);
  const line = () => {
    const ids = Array.from({ length: 40 + Math.floor(random() * 40) }, () => Math.floor(random() * 2_000));
    return `${JSON.stringify({ input_ids: ids })}\n`;
  };
  writeFileSync(machine.path("rows.jsonl"), Array.from({ length: ROWS }, line).join(""));
});
afterEach(async () => {
  await machine.remove();
  await store.close();
});

test("a run that nothing slows: the engines are the limit, and nobody is alarmed", async () => {
  const run = await start("healthy");
  const { alerts, run: about } = await run.until("compute", "engine");
  expect(alerts).toEqual([]);
  expect(about.action).toBeNull();
  expect(about.state).toBe("running");
});

test("a thin link is named, and when it widens the verdict moves on to the engines", async () => {
  store.limits.bytesPerS = 500_000;
  const run = await start("link");
  const { bottleneck } = await run.until("upload", "bandwidth");
  expect(bottleneck.advice).toContain("A faster link");
  const before = await run.bytesPerS();
  store.limits.bytesPerS = Number.POSITIVE_INFINITY;
  await run.until("compute", "engine");
  expect(await run.bytesPerS()).toBeGreaterThan(before * 1.3);
});

test("too few connections over a long way are named, and letting Forebay find the number helps", async () => {
  store.limits.bytesPerSEach = 250_000;
  const run = await start("sockets", "--uploads", "2");
  const { bottleneck } = await run.until("upload", "sockets");
  const before = await run.bytesPerS();
  const advised = /forebay (set \S+ uploads=auto)/.exec(bottleneck.advice)![1]!;
  expect(await machine.run([...advised.split(" "), "--run-dir", machine.path("run")])).toMatchObject({
    code: 0,
  });
  await run.faster(before * 1.3);
});

test("a store that answers SlowDown is named, and letting Forebay find the number helps", async () => {
  store.limits.putsAtOnce = 2;
  store.limits.bytesPerSEach = 500_000;
  const run = await start("slowdown", "--uploads", "48");
  const { bottleneck } = await run.until("upload", "throttled");
  expect(bottleneck.advice).toMatch(/asks to be sent less.*uploads=auto/s);
  const advised = /forebay (set \S+ uploads=auto)/.exec(bottleneck.advice)![1]!;
  expect(await machine.run([...advised.split(" "), "--run-dir", machine.path("run")])).toMatchObject({
    code: 0,
  });
  // Whoever asks for more than there is loses time in waiting for the next try.
  await run.faster(0.8 * 2 * 500_000);
});

test.skipIf(spawnSync("strace", ["--version"]).status !== 0)(
  "a spool on a slow disk is named, and a faster one helps",
  async () => {
    const run = await start("disk");
    await run.until("compute", "engine");
    const pids = (await run.status()).engines.map(({ pid }) => String(pid));
    // Each write of states takes a quarter of a second longer.
    const slow = spawn(
      "strace",
      [
        ...["-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64,write,pwritev"],
        ...["-e", "inject=pwrite64:delay_exit=250000", ...pids.flatMap((pid) => ["-p", pid])],
      ],
      { stdio: "ignore" },
    );
    onTestFinished(() => void slow.kill("SIGKILL"));
    const { bottleneck } = await run.until("disk", "fsync");
    expect(bottleneck.advice).toContain("--spool /dev/shm");
    const before = await run.bytesPerS();
    slow.kill("SIGTERM");
    await run.faster(before * 1.3);
  },
);

test("a spool too small for its engines is named", async () => {
  const run = await start("budget", "--spool-bytes", "1200KiB", "--pack-bytes", "256KiB", "--engines", "2");
  store.limits.bytesPerSEach = 5_000_000;
  const { bottleneck } = await run.until("disk", "budget").catch(async () => await run.status());
  // On a machine whose uploads are quicker than its engines two packs an engine are enough.
  if (bottleneck.stage !== "compute") expect(bottleneck.advice).toContain("--spool-bytes");
});

interface FollowedRun {
  status(): Promise<StatusDocument>;
  /** The document in which the verdict has been so three times in a row. */
  until(stage: string, cause: string): Promise<StatusDocument>;
  /** Verified, over the next seconds. */
  bytesPerS(): Promise<number>;
  faster(bytesPerS: number): Promise<void>;
}

async function start(name: string, ...options: string[]): Promise<FollowedRun> {
  const [port] = await freePorts(1);
  const running = machine.start([
    ...["run", `s3://${bucket}/p/${name}`, "--endpoint", store.endpoint],
    ...["--model", join(DEMO, "tiny-qwen3"), "--dataset", machine.path("rows.jsonl")],
    ...["--taps", "0,1,2,3,4,5,6,7", "--no-gate", "--progress", "quiet", "--port", String(port)],
    ...["--run-dir", machine.path("run"), "--disk-floor", "1MiB"],
    ...(options.includes("--spool-bytes") ? [] : ["--pack-bytes", "256KiB", "--spool-bytes", "6MiB"]),
    ...(options.includes("--engines") ? [] : ["--engines", "1"]),
    ...options,
  ]);
  let ended: string | null = null;
  void running.ended.then(({ code, stderr }) => {
    ended = `the run ended with ${code}:\n${stderr}`;
  });
  const status = async (): Promise<StatusDocument> => {
    for (const untilMs = Date.now() + PATIENCE_MS; Date.now() < untilMs; await sleep(250)) {
      if (ended !== null) throw new Error(ended);
      const answer = await fetch(`http://127.0.0.1:${port}/api/status`).catch(() => null);
      if (answer?.ok) return (await answer.json()) as StatusDocument;
    }
    throw new Error("the monitor never answered");
  };
  const bytesPerS = async (forMs = 8_000) => {
    const [before, startMs] = [await status(), Date.now()];
    await sleep(forMs);
    const after = await status();
    const bytes = after.extraction.bytes.verified - before.extraction.bytes.verified;
    return (bytes / (Date.now() - startMs)) * 1_000;
  };
  return {
    status,
    bytesPerS,
    until: async (stage, cause) => {
      let inARow = 0;
      let document = await status();
      for (const untilMs = Date.now() + PATIENCE_MS; Date.now() < untilMs; await sleep(1_000)) {
        document = await status();
        const { bottleneck } = document;
        inARow = bottleneck.stage === stage && bottleneck.cause === cause ? inARow + 1 : 0;
        if (inARow === 3) return document;
      }
      throw new Error(
        `expected ${stage} (${cause}), found ${JSON.stringify(document.bottleneck)} of ${JSON.stringify(document.stages)}, s3 ${JSON.stringify(document.s3)}`,
      );
    },
    faster: async (wanted) => {
      let found = 0;
      for (const untilMs = Date.now() + PATIENCE_MS; Date.now() < untilMs; ) {
        found = await bytesPerS();
        if (found > wanted) return;
      }
      throw new Error(`expected more than ${Math.round(wanted)} bytes/s, found ${Math.round(found)}`);
    },
  };
}
