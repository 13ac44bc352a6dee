import { createHash } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { GetObjectCommand, ListObjectsV2Command, type S3Client } from "@aws-sdk/client-s3";
import { eventsOf, FIXTURES, isStillAlive, type Machine } from "./program.ts";

/** Where a supervisor can be killed (kill-at.mjs), by the phase of a batch's way. */
export const KILL_POINTS = {
  compute: ["compute"],
  pack: ["pack", "rename"],
  ready: ["ready"],
  PUT: ["put", "put-sent", "put-answered"],
  verify: ["verify", "verify-answered"],
  unlink: ["unlink", "unlinked"],
} as const;
export type KillPhase = keyof typeof KILL_POINTS;
export const KILL_PHASES = Object.keys(KILL_POINTS) as KillPhase[];

const PRELOAD = fileURLToPath(new URL("./kill-at.mjs", import.meta.url));

export interface KillSubject {
  machine: Machine;
  /** "s3://bucket/prefix/name" or "file:dir/name" */
  address: string;
  endpoint: string | null;
  rows: number;
  packBytes: string;
}

/** The command that starts or resumes the subject's run. */
export function runArgs({ machine, address, endpoint, packBytes }: KillSubject): string[] {
  return [
    "run",
    address,
    ...["--model", join(FIXTURES, "models/random-qwen3"), "--dataset", machine.path("rows.jsonl")],
    ...["--taps", "1,3", "--pack-bytes", packBytes, "--spool-bytes", "64MiB", "--disk-floor", "1MiB"],
    ...["--run-dir", machine.path("run"), "--spool", machine.path("spool"), "--port", "0"],
    ...["--no-gate", "--progress", "quiet", "--threads", "1"],
    ...(endpoint ? ["--endpoint", endpoint] : []),
  ];
}

/** Rows of pseudo-random ids and lengths for `random-qwen3` (384 ids). */
export function writeRows(machine: Machine, rows: number, random: () => number): void {
  const lines = Array.from({ length: rows }, () => {
    const tokens = 5 + Math.floor(random() * 40);
    const ids = Array.from({ length: tokens }, () => Math.floor(random() * 384));
    return `${JSON.stringify({ input_ids: ids, loss_mask: ids.map((id) => id % 2) })}\n`;
  });
  writeFileSync(machine.path("rows.jsonl"), lines.join(""));
}

/** Starts the run to be killed at the nth passing of `point`; false where it ended before that came. */
export async function killAt(
  subject: KillSubject,
  kill: { point: string; nth: number; delayMs: number },
): Promise<boolean> {
  const counter = subject.machine.path("kill-counter");
  writeFileSync(counter, "");
  const { signal, code, stderr } = await subject.machine.run(runArgs(subject), {
    // By the environment and not by an argument: worker threads are started without the program's own.
    env: { NODE_OPTIONS: `--import=${PRELOAD}`, FOREBAY_TEST_KILL: JSON.stringify({ ...kill, counter }) },
  });
  if (signal === "SIGKILL") return true;
  if (code === 0) return false;
  throw new Error(`a run that was to be killed at ${kill.point} ${kill.nth} ended with ${code}:\n${stderr}`);
}

/** Engines of killed supervisors that still live: none should, a moment after. */
export async function orphanedEngines(subject: KillSubject, waitMs = 10_000): Promise<number[]> {
  const greeted = eventsOf(subject.machine.path("run")).filter(({ event }) => event === "engine.hello");
  const living = () =>
    greeted.flatMap(({ pid, at }) => (isStillAlive(Number(pid), String(at)) ? [Number(pid)] : []));
  for (let waited = 0; waited < waitMs; waited += 50) {
    if (living().length === 0) return [];
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return living();
}

/** What is left in the spool: should be nothing after a run that ended well. */
export function spoolLeftovers(subject: KillSubject): string[] {
  return ["parts", "ready", "quarantine"].flatMap((name) => {
    const directory = subject.machine.path("spool", name);
    return existsSync(directory) ? readdirSync(directory).map((file) => `${name}/${file}`) : [];
  });
}

/** sha256 of every pack under `packs/`, by key. */
export async function packHashesS3(
  client: S3Client,
  bucket: string,
  prefix: string,
): Promise<Map<string, string>> {
  const hashes = new Map<string, string>();
  let token: string | undefined;
  do {
    const page = await client.send(
      new ListObjectsV2Command({ Bucket: bucket, Prefix: `${prefix}/packs/`, ContinuationToken: token }),
    );
    for (const { Key } of page.Contents ?? []) {
      const { Body } = await client.send(new GetObjectCommand({ Bucket: bucket, Key }));
      hashes.set(Key!.slice(prefix.length + 1), sha256(await Body!.transformToByteArray()));
    }
    token = page.NextContinuationToken;
  } while (token);
  return hashes;
}

/** The same for a `file:` store. */
export function packHashesDirectory(directory: string): Map<string, string> {
  const files = readdirSync(join(directory, "packs"), { recursive: true, encoding: "utf8" });
  // A kill between link and unlink leaves a temporary, which is no object; the store removes old ones at a start.
  const isPack = (file: string) =>
    statSync(join(directory, "packs", file)).isFile() && !file.endsWith(".tmp");
  const packs = files.filter(isPack);
  return new Map(
    packs.map((file) => [`packs/${file}`, sha256(readFileSync(join(directory, "packs", file)))]),
  );
}

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}
