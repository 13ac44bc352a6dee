import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { beforeAll, describe, expect, type TestContext, test, vi } from "vitest";
import type { StatusDocument } from "../../src/run/status.ts";
import { mulberry32 } from "../support/chaos-proxy.ts";
import { DEMO, Machine } from "../support/program.ts";
import { credentialEnv, freePorts, makeBucket, type S3Server } from "../support/servers.ts";
import { sharedS3 } from "../support/shared-s3.ts";
import { type Limits, startSlowStore } from "../support/slow-store.ts";
import { needStrace } from "../support/strace.ts";

/**
 * Real runs, each slowed at one place: the page's verdict names it, and its advice, when followed, helps. Times are
 * only limits to how long a thing is waited for.
 */
const PATIENCE_MS = 120_000;
vi.setConfig({ testTimeout: 500_000 });
const ROWS = 40_000;

let server: S3Server;
let bucket: string;
let rows: string;

beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "verdict");
  const random = mulberry32(7);
  rows = Array.from({ length: ROWS }, () => {
    const ids = Array.from({ length: 40 + Math.floor(random() * 40) }, () => Math.floor(random() * 2_000));
    return `${JSON.stringify({ input_ids: ids })}\n`;
  }).join("");
});

test("a run that nothing slows: the engines are the limit, and nobody is alarmed", async (context) => {
  const run = await start(context, "healthy");
  const { alerts, run: about } = await run.until("compute", "engine");
  expect(alerts).toEqual([]);
  expect(about.action).toBeNull();
  expect(about.state).toBe("running");
});

// These leave the processors alone, and so each other.
describe.concurrent("slowed at one place", () => {
  test("a spool on a slow disk is named, and a faster one helps", async (context) => {
    needStrace();
    const run = await start(context, "disk");
    await run.committing();
    const pids = (await run.status()).engines.map(({ pid }) => String(pid));
    // Each write of states takes a quarter of a second longer.
    const slow = spawn(
      "strace",
      [
        ...["-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64"],
        ...["-e", "inject=pwrite64:delay_exit=250000", ...pids.flatMap((pid) => ["-p", pid])],
      ],
      { stdio: "ignore" },
    );
    context.onTestFinished(() => void slow.kill("SIGKILL"));
    const { bottleneck } = await run.until("disk", "fsync");
    expect(bottleneck.advice).toContain("--spool /dev/shm");
    const before = await run.bytesPerS();
    slow.kill("SIGTERM");
    await run.faster(before * 1.3);
  });

  test("a thin link is named, and when it widens the verdict moves on to the engines", async (context) => {
    const run = await start(context, "link");
    await run.committing();
    run.limits.bytesPerS = 500_000;
    const { bottleneck } = await run.until("upload", "bandwidth");
    expect(bottleneck.advice).toContain("A faster link");
    const before = await run.bytesPerS();
    run.limits.bytesPerS = Number.POSITIVE_INFINITY;
    await run.until("compute", "engine");
    await run.faster(before * 1.3);
  });

  test("too few connections over a long way are named, and letting Forebay find the number helps", async (context) => {
    const run = await start(context, "sockets", "--uploads", "2");
    await run.committing();
    run.limits.bytesPerSEach = 250_000;
    const { bottleneck } = await run.until("upload", "sockets");
    const before = await run.bytesPerS();
    await run.follow(/forebay (set \S+ uploads=auto)/.exec(bottleneck.advice)?.[1]);
    await run.faster(before * 1.3);
  });

  test("a store that answers SlowDown is named, and letting Forebay find the number helps", async (context) => {
    const run = await start(context, "slowdown", "--uploads", "48");
    await run.committing();
    run.limits.putsAtOnce = 2;
    run.limits.bytesPerSEach = 500_000;
    const { bottleneck } = await run.until("upload", "throttled");
    expect(bottleneck.advice).toContain("asks to be sent less");
    const before = await run.bytesPerS();
    await run.follow(/forebay (set \S+ uploads=auto)/.exec(bottleneck.advice)?.[1]);
    // Who asks for more than there is loses time in waiting for the next try.
    await run.faster(before * 1.1);
  });

  test("a spool too small to keep the connections at work is named, and a larger one helps", async (context) => {
    const small = await start(context, "budget", "--uploads", "16", "--spool-bytes", "1300KiB");
    await small.committing();
    small.limits.bytesPerSEach = 100_000;
    const { bottleneck } = await small.until("disk", "budget");
    expect(bottleneck.advice).toContain("--spool-bytes");
    const before = await small.bytesPerS();
    await small.stop();
    const large = await start(context, "budget", "--uploads", "16", "--spool-bytes", "6MiB");
    large.limits.bytesPerSEach = 100_000;
    await large.committing();
    await large.faster(before * 1.3);
  });
});

interface FollowedRun {
  limits: Limits;
  status(): Promise<StatusDocument>;
  /** Resolves once the first batch of this session is committed. */
  committing(): Promise<void>;
  /** The document in which the verdict has been so three times in a row. */
  until(stage: string, cause: string): Promise<StatusDocument>;
  /** Verified, over the next seconds. */
  bytesPerS(): Promise<number>;
  faster(bytesPerS: number): Promise<void>;
  /** Runs what the advice says. */
  follow(command: string | undefined): Promise<void>;
  stop(): Promise<void>;
}

/** A run of one engine on a machine of its own, to the real server behind limits of its own. */
async function start(context: TestContext, name: string, ...options: string[]): Promise<FollowedRun> {
  const machine = new Machine(credentialEnv(server));
  context.onTestFinished(() => machine.remove());
  const store = await startSlowStore(server.endpoint);
  context.onTestFinished(() => store.close());
  writeFileSync(machine.path("rows.jsonl"), rows);
  const [port] = await freePorts(1);
  const running = machine.start([
    ...["run", `s3://${bucket}/p/${name}`, "--endpoint", store.endpoint, "--engines", "1"],
    ...["--model", join(DEMO, "tiny-qwen3"), "--dataset", machine.path("rows.jsonl")],
    ...["--taps", "0,1,2,3,4,5,6,7", "--no-gate", "--progress", "quiet", "--port", String(port)],
    ...["--run-dir", machine.path("run"), "--disk-floor", "1MiB", "--pack-bytes", "256KiB"],
    ...(options.includes("--spool-bytes") ? [] : ["--spool-bytes", "6MiB"]),
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
  /** The first document that `isSo`; looked for once a second. */
  const documentThat = async (what: string, isSo: (document: StatusDocument) => boolean) => {
    let document = await status();
    for (const untilMs = Date.now() + PATIENCE_MS; !isSo(document); document = await status()) {
      if (Date.now() > untilMs) {
        const { bottleneck, stages, s3, extraction } = document;
        throw new Error(`expected ${what}; found ${JSON.stringify({ bottleneck, stages, s3, extraction })}`);
      }
      await sleep(1_000);
    }
    return document;
  };
  const bytesPerS = async () => {
    const [before, startMs] = [await status(), Date.now()];
    await sleep(6_000);
    const bytes = (await status()).extraction.bytes.verified - before.extraction.bytes.verified;
    return (bytes / (Date.now() - startMs)) * 1_000;
  };

  return {
    limits: store.limits,
    status,
    bytesPerS,
    committing: async () => {
      await documentThat("a commit", ({ extraction }) => extraction.last_commit_at !== null);
    },
    until: (stage, cause) => {
      let inARow = 0;
      return documentThat(`${stage}, ${cause}`, ({ bottleneck }) => {
        inARow = bottleneck.stage === stage && bottleneck.cause === cause ? inARow + 1 : 0;
        return inARow === 3;
      });
    },
    faster: async (wanted) => {
      let found = 0;
      for (const untilMs = Date.now() + PATIENCE_MS; Date.now() < untilMs; ) {
        found = await bytesPerS();
        if (found > wanted) return;
      }
      throw new Error(`expected more than ${Math.round(wanted)} bytes/s, found ${Math.round(found)}`);
    },
    follow: async (command) => {
      expect(command).toBeDefined();
      const { code, stderr } = await machine.run([...command!.split(" "), "--run-dir", machine.path("run")]);
      expect(code, stderr).toBe(0);
    },
    stop: async () => {
      running.child.kill("SIGTERM");
      await running.ended;
    },
  };
}
