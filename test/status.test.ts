import { GetObjectCommand, PutObjectCommand } from "@aws-sdk/client-s3";
import { afterEach, beforeAll, expect, test } from "vitest";
import { sleep } from "../src/base/backoff.ts";
import { StatusDocument } from "../src/run/status.ts";
import { type FaultyRun, faultyRun, logged, ROWS, sickEngines, startRun } from "./support/faults.ts";
import { type Ended, Machine, type Running } from "./support/program.ts";
import { credentialEnv, makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/** `forebay status` of real runs, by their own machine and by one that has nothing but the bucket. */

let server: S3Server;
let bucket: string;
const machines: Machine[] = [];
/** Ten batches in all: a part of five takes a quarter of a minute. */
const slow = sickEngines({ delayMs: 3_000 });

beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "status");
});
afterEach(async () => {
  for (const machine of machines.splice(0)) await machine.remove();
});

/** The run `name` on a machine of its own. */
function open(name: string): FaultyRun {
  const run = faultyRun(name, { server, bucket });
  machines.push(run.machine);
  return run;
}

/** A machine that has never seen the run. */
function elsewhere(): Machine {
  const machine = new Machine(credentialEnv(server));
  machines.push(machine);
  return machine;
}

async function statusOf(machine: Machine, run: FaultyRun, ...flags: string[]): Promise<Ended> {
  return machine.run(["status", run.address, "--endpoint", server.endpoint, ...flags]);
}

async function documentOf(machine: Machine, run: FaultyRun, ...flags: string[]): Promise<StatusDocument> {
  const { code, stdout, stderr } = await statusOf(machine, run, "--json", ...flags);
  expect(code, stderr).toBe(0);
  return StatusDocument.parse(JSON.parse(stdout));
}

/** Asks until the document is as it is wanted. */
async function untilStatus(
  ask: () => Promise<StatusDocument>,
  isSo: (document: StatusDocument) => boolean,
): Promise<StatusDocument> {
  for (;;) {
    const document = await ask();
    if (isSo(document)) return document;
    await sleep(500);
  }
}

function lines(running: Running): StatusDocument[] {
  let text = "";
  const documents: StatusDocument[] = [];
  running.child.stdout!.on("data", (piece: Buffer) => {
    text += piece.toString();
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n")) {
      documents.push(StatusDocument.parse(JSON.parse(text.slice(0, end))));
      text = text.slice(end + 1);
    }
  });
  return documents;
}

test("two machines' parts are one run to who has the bucket alone; watched until the last of them is done", async () => {
  const [one, two] = [open("parts"), open("parts")];
  // So that the first is at work for as long as it takes the second to start and to be looked at.
  const first = startRun(one, "--part", "1/2", ...sickEngines({ delayMs: 10_000 }));
  await logged(one, first, "batch.committed");
  const looker = elsewhere();

  const half = await untilStatus(
    () => documentOf(looker, one),
    ({ run }) => run.state === "running",
  );
  expect(half.extraction.total).toBe(ROWS);
  expect(half.alerts).toContainEqual({
    level: "warn",
    text: "nobody works on part 2/2",
    action: expect.stringContaining(" --part 2/2"),
  });

  const second = startRun(two, "--part", "2/2", ...sickEngines({ delayMs: 4_000 }));
  await logged(two, second, "batch.committed");
  const both = await untilStatus(
    () => documentOf(looker, one),
    ({ run, engines, extraction }) =>
      run.state === "running" && engines.length === 2 && extraction.batches.committed > 0,
  );
  const { extraction } = both;
  expect(extraction.total).toBe(ROWS);
  expect(extraction.total_processed).toBeLessThan(ROWS);
  expect(extraction.shards.map(({ shard, total }) => [shard, total])).toEqual([
    [0, ROWS],
    [1, ROWS],
  ]);
  expect(both.alerts.filter(({ text }) => text.includes("nobody works"))).toEqual([]);
  const table = (await statusOf(looker, one)).stdout;
  expect(table).toMatch(/^1\/2 +running /m);
  expect(table).toMatch(/^2\/2 +running /m);
  expect(table).toContain(", from the store");

  const watching = looker.start(["status", one.address, "--endpoint", server.endpoint, "--watch", "--json"]);
  const seen = lines(watching);
  const ended = await Promise.all([first.ended, second.ended]);
  for (const { code, stderr } of ended) expect(code, stderr).toBe(0);
  expect((await watching.ended).code).toBe(0);
  expect(seen.length).toBeGreaterThan(1);
  expect(seen.map(({ run }) => run.state).slice(0, -1)).not.toContain("done");
  const last = seen.at(-1)!;
  expect(last.run).toMatchObject({ state: "done", exit_code: 0 });
  expect(last.extraction).toMatchObject({ total_processed: ROWS, total: ROWS });
  expect(last.extraction.tokens.done).toBe(last.extraction.tokens.total);
}, 300_000);

test("a machine that was killed is lost: to itself at once, to others after three intervals by the store's clock", async () => {
  const [dying, other] = [open("killed"), open("killed")];
  const first = startRun(dying, "--part", "1/2", ...slow);
  await logged(dying, first, "batch.committed");
  const done = await startRun(other, "--part", "2/2").ended;
  expect(done.code, done.stderr).toBe(0);
  const looker = elsewhere();
  // Heartbeats tell a change after five seconds at the latest.
  await untilStatus(
    () => documentOf(looker, dying),
    ({ run }) => run.state === "running",
  );
  first.child.kill("SIGKILL");
  await first.ended;
  const runDirectory = ["--run-dir", dying.machine.path("run")];

  const atHome = await documentOf(dying.machine, dying, ...runDirectory);
  expect(atHome.run).toMatchObject({
    state: "lost",
    reason: expect.stringMatching(/^part 1\/2: its process \d+ on this machine is gone$/),
    action: expect.stringMatching(/^forebay resume .* --part 1\/2/),
  });
  expect((await documentOf(looker, dying)).run.state).toBe("running");

  await shortenInterval(dying, "1-of-2");
  const lost = await untilStatus(
    () => documentOf(looker, dying),
    ({ run }) => run.state !== "running",
  );
  expect(lost.run).toMatchObject({
    state: "lost",
    reason: expect.stringMatching(/^part 1\/2: no heartbeat for \d+ s from /),
    action: expect.stringContaining(" --part 1/2"),
  });
  expect(lost.extraction.eta).toMatchObject({ p50_s: null, reason: "part 1/2 is lost" });
  const table = (await statusOf(looker, dying)).stdout;
  expect(table).toMatch(/^1\/2 +lost /m);
  expect(table).toMatch(/^2\/2 +done /m);
  expect(table).not.toMatch(/tokens\/s,|^to go/m);
}, 300_000);

test("a living run is watched by its own machine each second, to its end", async () => {
  const run = open("watched");
  const running = startRun(run, ...sickEngines({ delayMs: 1_000 }));
  await logged(run, running, "batch.committed");
  const runDirectory = ["--run-dir", run.machine.path("run")];
  const watching = run.machine.start([
    ...["status", run.address, "--endpoint", server.endpoint, ...runDirectory],
    ...["--watch", "--json"],
  ]);
  const seen = lines(watching);
  expect((await running.ended).code).toBe(0);
  expect((await watching.ended).code).toBe(0);
  expect(seen.at(-1)!.run.state).toBe("done");
  const live = seen.filter(({ run: { state } }) => state === "running");
  expect(live.length).toBeGreaterThan(0);
  expect(new Set(seen.map(({ generated_at }) => generated_at)).size).toBe(seen.length);
});

test("watching ends at Ctrl-C, and the run does not", async () => {
  const run = open("left-alone");
  const running = startRun(run, ...slow);
  await logged(run, running, "batch.committed");
  const watching = elsewhere().start(["status", run.address, "--endpoint", server.endpoint, "--watch"]);
  await new Promise((resolve) => watching.child.stdout!.once("data", resolve));
  watching.child.kill("SIGINT");
  expect(await watching.ended).toMatchObject({ code: 130, stderr: "" });
  running.child.kill("SIGTERM");
  expect((await running.ended).code).toBe(143);
  const after = await documentOf(elsewhere(), run);
  expect(after.run).toMatchObject({ state: "stopped", exit_code: 143 });
});

/** As if the machine had beaten once a second: nobody can wait for three of its minutes in a test. */
async function shortenInterval({ name }: FaultyRun, part: string): Promise<void> {
  const client = s3Client(server);
  const object = { Bucket: bucket, Key: `p/${name}/status/${part}.json` };
  const { Body } = await client.send(new GetObjectCommand(object));
  const document = StatusDocument.parse(JSON.parse(await Body!.transformToString()));
  const shortened = JSON.stringify({ ...document, heartbeat_interval_s: 1 });
  await client.send(new PutObjectCommand({ ...object, Body: shortened }));
  client.destroy();
}
