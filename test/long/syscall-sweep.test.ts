import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { mulberry32 } from "../support/chaos-proxy.ts";
import {
  type KillSubject,
  orphanedEngines,
  packHashesDirectory,
  packHashesS3,
  runArgs,
  spoolLeftovers,
  writeRows,
} from "../support/kills.ts";
import { Machine } from "../support/program.ts";
import { credentialEnv, makeBucket, type S3Server, s3Client } from "../support/servers.ts";
import { sharedS3 } from "../support/shared-s3.ts";
import { runTraced } from "../support/strace.ts";

/**
 * A run of three batches is killed as its threads enter their 1st, 2nd, 3rd ... call of one kind, each start going on
 * where the last one was killed, until a start passes untouched. Calls that only read are left out: a kill before
 * one is a kill after the change before it.
 */

const ROWS = 18;

let server: S3Server;
let bucket: string;
let machine: Machine;
beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "syscalls");
  machine = new Machine(credentialEnv(server));
  writeRows(machine, ROWS, mulberry32(2));
});
afterAll(() => machine?.remove());

describe.each([
  {
    store: "directory",
    calls: ["rename", "link", "unlink", "mkdir", "ftruncate", "fsync", "pwrite64", "write"],
  },
  { store: "S3", calls: ["rename", "unlink", "connect", "writev", "write"] },
])("a three-batch run into $store", ({ store, calls }) => {
  let expected: Map<string, string>;
  beforeAll(async () => {
    const reference = subject(store, "reference");
    const ended = await machine.run(runArgs(reference));
    expect(ended.code, ended.stderr).toBe(0);
    expected = await stored(store, "reference");
    expect(expected.size).toBe(3);
  });

  test.each(calls)("killed at every %s ends whole", async (call) => {
    const run = subject(store, call);
    let kills = 0;
    for (let nth = 1; ; nth += 1) {
      // Engines are left alone: they are other programs, and detached from as they start.
      const kill = ["-b", "execve", "-e", `trace=${call}`, "-e", `inject=${call}:signal=SIGKILL:when=${nth}`];
      const { code, signal, stderr } = await runTraced(machine, runArgs(run), kill, machine.path("calls"));
      if (code === 0) break;
      expect(signal, `at ${call} ${nth}: exit ${code}\n${stderr}`).toBe("SIGKILL");
      kills += 1;
    }
    console.log(`${store}: ${kills} kills at ${call}`);
    expect(kills).toBeGreaterThan(0);
    const verified = await machine.run(["verify", run.address, "--deep", "--json", ...endpoint(store)]);
    expect(JSON.parse(verified.stdout.trim())).toMatchObject({
      ok: true,
      rows: { planned: ROWS, committed: ROWS, missing: 0, duplicate: 0, corrupt: 0 },
      aliens: 0,
    });
    expect(await stored(store, call)).toEqual(expected);
    expect(spoolLeftovers(run)).toEqual([]);
    expect(await orphanedEngines(run)).toEqual([]);
  });
});

function subject(store: string, name: string): KillSubject {
  const address = store === "S3" ? `s3://${bucket}/p/${name}` : `file:${machine.path("store")}/${name}`;
  const at = store === "S3" ? server.endpoint : null;
  return { machine, address, endpoint: at, rows: ROWS, packBytes: "48KiB" };
}

function endpoint(store: string): string[] {
  return store === "S3" ? ["--endpoint", server.endpoint] : [];
}

async function stored(store: string, name: string): Promise<Map<string, string>> {
  if (store !== "S3") return packHashesDirectory(machine.path("store", name));
  return packHashesS3(s3Client(server), bucket, `p/${name}`);
}
