import { spawn } from "node:child_process";
import { once } from "node:events";
import { afterAll, beforeAll, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import {
  KILL_PHASES,
  KILL_POINTS,
  type KillPhase,
  type KillSubject,
  killAt,
  orphanedEngines,
  packHashesS3,
  runArgs,
  spoolLeftovers,
  writeRows,
} from "./support/kills.ts";
import { isStillAlive, Machine } from "./support/program.ts";
import { credentialEnv, makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

const KILLS = Number(process.env.FOREBAY_TEST_KILLS ?? 40);
const SEED = Number(process.env.FOREBAY_TEST_SEED ?? Math.floor(Math.random() * 2 ** 31));
const ROWS = 60;

let server: S3Server;
let bucket: string;
let machine: Machine;
beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "kills");
  machine = new Machine(credentialEnv(server));
  writeRows(machine, ROWS, mulberry32(1));
});
afterAll(() => machine?.remove());

test("an engine that lives on is seen, and a process that got its pid since is not taken for it", async () => {
  const child = spawn("sleep", ["60"]);
  const [before, now] = [new Date(Date.now() - 1_000), new Date(Date.now() + 1_000)].map((at) =>
    at.toISOString(),
  );
  expect([isStillAlive(child.pid!, before!), isStillAlive(child.pid!, now!)]).toEqual([false, true]);
  child.kill("SIGKILL");
  await once(child, "exit");
  expect(isStillAlive(child.pid!, now!)).toBe(false);
});

test(`${KILLS} seeded SIGKILLs in every phase lose no row, double none, change no byte`, {
  timeout: 400_000 + KILLS * 10_000,
}, async () => {
  console.log(`seed ${SEED}: FOREBAY_TEST_SEED=${SEED} repeats it`);
  const random = mulberry32(SEED);
  const reference = subject("reference");
  expect(await machine.run(runArgs(reference))).toMatchObject({ code: 0 });
  const expected = await packHashesS3(s3Client(server), bucket, "p/reference");
  expect(expected.size).toBeGreaterThanOrEqual(10);

  const kills = Object.fromEntries(KILL_PHASES.map((phase) => [phase, 0])) as Record<KillPhase, number>;
  let runs = 0;
  let total = 0;
  while (total < KILLS) {
    const run = subject(`run-${runs}`);
    runs += 1;
    for (let ended = false; !ended && total < KILLS; ) {
      // Phases in turn and points by chance, so that none stays empty.
      const phase = KILL_PHASES[total % KILL_PHASES.length]!;
      const points = KILL_POINTS[phase];
      const killed = await killAt(run, {
        point: points[Math.floor(random() * points.length)]!,
        nth: 1 + Math.floor(random() * 2),
        delayMs: phase === "compute" ? Math.floor(random() * 60) : 0,
      });
      if (killed) {
        kills[phase] += 1;
        total += 1;
      } else ended = true;
    }
    const last = await machine.run(runArgs(run));
    expect(last, last.stderr).toMatchObject({ code: 0 });
    const verified = await machine.run([
      "verify",
      run.address,
      "--deep",
      "--json",
      "--endpoint",
      server.endpoint,
    ]);
    expect(JSON.parse(verified.stdout.trim().split("\n").at(-1)!)).toMatchObject({
      ok: true,
      rows: { planned: ROWS, committed: ROWS, skipped: 0, missing: 0, duplicate: 0, corrupt: 0 },
      aliens: 0,
    });
    expect(await packHashesS3(s3Client(server), bucket, `p/run-${runs - 1}`)).toEqual(expected);
    expect(spoolLeftovers(run)).toEqual([]);
    expect(await orphanedEngines(run)).toEqual([]);
  }
  console.log(
    `kills by phase: ${KILL_PHASES.map((phase) => `${phase} ${kills[phase]}`).join(", ")}; ${runs} runs`,
  );
  for (const phase of KILL_PHASES) expect(kills[phase], phase).toBeGreaterThan(0);
});

function subject(name: string): KillSubject {
  return {
    machine,
    address: `s3://${bucket}/p/${name}`,
    endpoint: server.endpoint,
    rows: ROWS,
    packBytes: "48KiB",
  };
}
