import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
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
import { orphanedEngines } from "./support/kills.ts";
import { FIXTURES, freeze, Machine } from "./support/program.ts";
import { credentialEnv, makeBucket, type S3Server } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/** Stops, take-overs, parts and moves to another machine, through the built program and a real server. */

let server: S3Server;
let store: { server: S3Server; bucket: string };
let expected: Map<string, string>;
const machines: Machine[] = [];
const slow = sickEngines({ delayMs: 300 });

beforeAll(async () => {
  server = sharedS3("weed");
  store = { server, bucket: await makeBucket(server, "control") };
  const reference = open("reference");
  const ended = await startRun(reference).ended;
  expect(ended.code, ended.stderr).toBe(0);
  expected = await packsOf(reference);
});
afterEach(async () => {
  for (const machine of machines.splice(0)) await machine.remove();
});
afterAll(async () => {
  for (const machine of machines) await machine.remove();
});

/** The run `name` on a machine of its own: another HOME, working directory, run directory and spool. */
function open(name: string): FaultyRun {
  const run = faultyRun(name, store);
  machines.push(run.machine);
  return run;
}

describe("a stop", () => {
  test.each(["SIGTERM", "SIGHUP"] as const)(
    "by %s finishes what is in the engines and exits 143",
    async (signal) => {
      const run = open(`stop-${signal.toLowerCase()}`);
      const running = startRun(run, "--json", ...sickEngines({ delayMs: 1_000 }));
      await logged(run, running, "batch.committed");
      running.child.kill(signal);
      const ended = await running.ended;
      expect(ended.code, ended.stderr).toBe(143);
      expect(JSON.parse(ended.stdout)).toMatchObject({ state: "stopped" });
      expect(await orphanedEngines(run)).toEqual([]);
      const committed = (await packsOf(run)).size;
      expect(committed).toBeLessThan(expected.size);
      const computed = events(run, "batch.committed").length;
      expect(computed).toBe(committed);
      const again = await startRun(run).ended;
      expect(again.code, again.stderr).toBe(0);
      // Nothing twice: each batch was committed once, over both sessions.
      expect(events(run, "batch.committed").length).toBe(expected.size);
      await expectWhole(run, expected);
    },
  );

  test("by a second signal exits at once, and loses nothing that was finished", async () => {
    const run = open("stop-twice");
    const running = startRun(run, ...sickEngines({ delayMs: 3_000 }));
    await logged(run, running, "batch.committed");
    running.child.kill("SIGTERM");
    await statusWhere(run, running, ({ run: { state } }) => state === "stopping");
    running.child.kill("SIGTERM");
    const ended = await running.ended;
    expect([ended.code, ended.signal]).toEqual([143, null]);
    expect(await orphanedEngines(run)).toEqual([]);
    const again = await startRun(run).ended;
    expect(again.code, again.stderr).toBe(0);
    expect(new Set(events(run, "batch.committed").map(({ batch }) => batch)).size).toBe(expected.size);
    await expectWhole(run, expected);
  });
});

describe("a part", () => {
  test("is taken over at once from a supervisor that was killed", async () => {
    const [first, second] = [open("taken-over"), open("taken-over")];
    const running = startRun(first, ...slow);
    await logged(first, running, "batch.committed");
    running.child.kill("SIGKILL");
    await running.ended;
    const ended = await startRun(second).ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(second, expected);
  });

  test("is taken over at once after a restart of the machine, whatever process has the old pid now", async () => {
    const run = faultyRun("reused-pid", null);
    machines.push(run.machine);
    const running = startRun(run, ...slow);
    await logged(run, running, "batch.committed");
    running.child.kill("SIGKILL");
    await running.ended;
    // As it is after a reboot: the record and the heartbeat name a pid that is another process's, here this test's.
    const reuse = (path: string, find: RegExp) => {
      const text = readFileSync(path, "utf8");
      expect(text).toMatch(find);
      writeFileSync(path, text.replace(find, `"pid":${process.pid}`));
    };
    const pid = new RegExp(`"pid": ?${running.child.pid}\\b`);
    reuse(run.machine.path("run/supervisor.json"), pid);
    reuse(run.machine.path("store/reused-pid/status/1-of-1.json"), pid);
    const ended = await startRun(run).ended;
    expect(ended.code, ended.stderr).toBe(0);
    await expectWhole(run, expected);
  });

  test("is refused while its run lives; taken over by force, both together leave one whole run", async () => {
    const [first, second] = [open("forced"), open("forced")];
    const running = startRun(first, ...slow);
    await logged(first, running, "batch.committed");
    await freeze(running.child.pid!);
    const refused = await startRun(second).ended;
    expect(refused.code, refused.stderr).toBe(5);
    const taker = startRun(second, "--take-over", ...slow);
    await logged(second, taker, "batch.committed");
    running.child.kill("SIGCONT");
    const [one, other] = await Promise.all([running.ended, taker.ended]);
    expect([one.code, other.code], `${one.stderr}${other.stderr}`).toEqual([0, 0]);
    await expectWhole(second, expected);
  });

  test("of two, on two machines at once, is half of one run", async () => {
    const [one, two] = [open("parts"), open("parts")];
    const ended = await Promise.all([
      startRun(one, "--part", "1/2").ended,
      startRun(two, "--part", "2/2").ended,
    ]);
    for (const { code, stderr } of ended) expect(code, stderr).toBe(0);
    const [ones, twos] = [one, two].map((run) =>
      events(run, "batch.committed").map(({ batch }) => Number(batch)),
    );
    expect(new Set(ones!.map((batch) => batch % 2))).toEqual(new Set([0]));
    expect(new Set(twos!.map((batch) => batch % 2))).toEqual(new Set([1]));
    expect(ones!.length + twos!.length).toBe(expected.size);
    await expectWhole(one, expected);
  });
});

test("a run goes on from the bucket alone: other HOME, directory, spool and model path, no dataset, no taps", async () => {
  const first = open("moved");
  const running = startRun(first, ...slow);
  await logged(first, running, "batch.committed", 2);
  running.child.kill("SIGKILL");
  await running.ended;
  await orphanedEngines(first);
  const before = (await packsOf(first)).size;
  expect(before).toBeLessThan(expected.size);
  rmSync(first.machine.root, { recursive: true, force: true });

  const machine = new Machine(credentialEnv(server));
  machines.push(machine);
  const model = machine.path("models/elsewhere");
  cpSync(join(FIXTURES, "models/random-qwen3"), model, { recursive: true });
  const moved = { ...first, machine };
  const ended = await machine.run([
    ...["resume", first.address, "--model", model, "--endpoint", server.endpoint, "--json"],
    ...["--run-dir", machine.path("run"), "--spool", machine.path("spool"), "--disk-floor", "1MiB"],
    ...["--no-gate", "--progress", "quiet", "--port", "0"],
  ]);
  expect(ended.code, ended.stderr).toBe(0);
  expect(JSON.parse(ended.stdout)).toMatchObject({ state: "done", samples: 60 });
  expect(events(moved, "batch.committed").length).toBe(expected.size - before);
  await expectWhole(moved, expected);

  const other = await machine.run([
    ...[
      "resume",
      first.address,
      "--model",
      join(FIXTURES, "models/random-llama"),
      "--endpoint",
      server.endpoint,
    ],
    ...["--run-dir", machine.path("run-other"), "--progress", "quiet", "--port", "0"],
  ]);
  expect(other.code, other.stderr).toBe(4);
  expect(other.stderr).toContain("model weights: stored");
});
