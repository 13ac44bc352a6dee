import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect } from "vitest";
import { mulberry32 } from "./chaos-proxy.ts";
import {
  type KillSubject,
  orphanedEngines,
  packHashesDirectory,
  packHashesS3,
  runArgs,
  spoolLeftovers,
  writeRows,
} from "./kills.ts";
import { eventsOf, Machine, type Running } from "./program.ts";
import { credentialEnv, type S3Server, s3Client } from "./servers.ts";

/** A run in the way of some fault: on a machine of its own, of the same rows as all others, and so of the same packs. */

export const ROWS = 60;
const SICK_ENGINE = fileURLToPath(new URL("./sick-engine.mjs", import.meta.url));

export interface FaultyRun extends KillSubject {
  /** The server behind whatever stands in front of it; null: a directory store of the machine's. */
  server: S3Server | null;
  bucket: string | null;
  name: string;
}

/** A new machine with the rows on it, and the run `name` on it; `endpoint`: a proxy in front of the server. */
export function faultyRun(
  name: string,
  store: { server: S3Server; bucket: string; endpoint?: string } | null,
  machine = machineWithRows(store?.server ?? null),
): FaultyRun {
  const common = { machine, name, rows: ROWS, packBytes: "48KiB" };
  if (!store) {
    const address = `file:${machine.path("store")}/${name}`;
    return { ...common, address, endpoint: null, server: null, bucket: null };
  }
  const { server, bucket, endpoint = server.endpoint } = store;
  return { ...common, address: `s3://${bucket}/p/${name}`, endpoint, server, bucket };
}

function machineWithRows(server: S3Server | null): Machine {
  const machine = new Machine(server ? credentialEnv(server) : {});
  writeRows(machine, ROWS, mulberry32(1));
  return machine;
}

export function startRun(run: FaultyRun, ...flags: string[]): Running {
  return run.machine.start([...runArgs(run), ...flags]);
}

/** What the store holds, by key. */
export function packsOf(run: FaultyRun): Promise<Map<string, string>> {
  const directory = run.machine.path("store", run.name);
  if (!run.server) {
    return Promise.resolve(existsSync(join(directory, "packs")) ? packHashesDirectory(directory) : new Map());
  }
  return packHashesS3(s3Client(run.server), run.bucket!, `p/${run.name}`);
}

/** Every row once, every byte as in an undisturbed run, nothing left in the spool, no engine left alive. */
export async function expectWhole(run: FaultyRun, expected: Map<string, string>): Promise<void> {
  const endpoint = run.server ? ["--endpoint", run.server.endpoint] : [];
  const verified = await run.machine.run(["verify", run.address, "--deep", "--json", ...endpoint]);
  expect(JSON.parse(verified.stdout.trim()), verified.stderr).toMatchObject({
    ok: true,
    rows: { planned: ROWS, committed: ROWS, skipped: 0, missing: 0, duplicate: 0, corrupt: 0 },
    aliens: 0,
  });
  expect(await packsOf(run)).toEqual(expected);
  expect(spoolLeftovers(run)).toEqual([]);
  expect(await orphanedEngines(run)).toEqual([]);
}

/** Flags that make the run's engines misbehave; see sick-engine.mjs. */
export function sickEngines(sick: {
  mode?: "fail-rows" | "flip" | "wrong-crc";
  rows?: number[];
  device?: string;
  delayMs?: number;
  loadMs?: number;
  once?: string;
}): string[] {
  const value = JSON.stringify(sick);
  return [
    ...["--engine-env", `NODE_OPTIONS=--import=${SICK_ENGINE}`],
    ...["--engine-env", `FOREBAY_TEST_SICK=${value}`],
  ];
}

export type Event = Record<string, unknown>;

export function events(run: FaultyRun, name: string): Event[] {
  return eventsOf(run.machine.path("run")).filter(({ event }) => event === name);
}

/** Waits for the nth event of that name; rejects where the run ends first. */
export async function logged(run: FaultyRun, running: Running, name: string, nth = 1): Promise<Event> {
  return until(running, `event ${name}`, () => events(run, name)[nth - 1]);
}

export interface Status {
  run: { state: string; reason: string | null; action: string | null; pid: number };
  extraction: { batches: { committed: number } };
  engines: { name: string; state: string }[];
}

/** Waits until the run's status document is as `isSo` wants it. */
export async function statusWhere(
  run: FaultyRun,
  running: Running,
  isSo: (status: Status) => boolean,
): Promise<Status> {
  return until(running, "that status", () => {
    const status = readStatus(run);
    return status && isSo(status) ? status : undefined;
  });
}

function readStatus(run: FaultyRun): Status | null {
  try {
    return JSON.parse(readFileSync(run.machine.path("run/status.json"), "utf8")) as Status;
  } catch {
    return null;
  }
}

async function until<T>(running: Running, what: string, find: () => T | undefined): Promise<T> {
  let ended = false;
  void running.ended.then(() => {
    ended = true;
  });
  for (;;) {
    const found = find();
    if (found !== undefined) return found;
    if (ended) {
      const { code, stderr } = await running.ended;
      throw new Error(`waited for ${what}, and the run ended with ${code}:\n${stderr}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
}
