import { z } from "zod";
import { sleep } from "../base/backoff.ts";
import { crc32c } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { statusKey } from "../store/keys.ts";
import type { Store } from "../store/store.ts";
import type { StatusDocument } from "./status.ts";

export interface Part {
  /** 1-based. */
  index: number;
  count: number;
}

/** Parts interleave, so that each is as fair a sample of the dataset as the whole. */
export function isOfPart(batch: number, part: Part): boolean {
  return batch % part.count === part.index - 1;
}

/** The fields of a heartbeat that the lease needs; the rest of the document is for people. */
const Heartbeat = z.object({
  heartbeat_at: z.string(),
  heartbeat_interval_s: z.number().positive(),
  run: z.object({ host: z.string(), pid: z.number(), state: z.string() }),
});

export interface ClaimOptions {
  store: Store;
  part: Part;
  host: string;
  /** Whether a process of this pid lives on this host. */
  pidAlive: (pid: number) => boolean;
  takeOver: boolean;
  onWaiting?: (seconds: number) => void;
  signal?: AbortSignal;
}

const FINISHED = new Set(["stopped", "done", "done_with_skips", "failed", "preempted"]);

/**
 * Friendly refusal of a second run on the same part. Returns at once where no heartbeat stands, where the last one
 * says it ended, where its process on this host is dead, or with `takeOver`; else watches it for three intervals by
 * this machine's own clock and throws exit 5 as soon as it changes. Safety does not rest on this: create-only does.
 */
export async function claimPart(options: ClaimOptions): Promise<void> {
  const { store, part, signal } = options;
  const key = statusKey(part);
  const first = await store.get(key, null, signal);
  const heartbeat = parseHeartbeat(first);
  if (!first || !heartbeat || options.takeOver || FINISHED.has(heartbeat.run.state)) return;
  if (heartbeat.run.host === options.host && !options.pidAlive(heartbeat.run.pid)) return;
  if (heartbeat.run.host === options.host) throw taken(store, part, heartbeat);
  const waitS = 3 * heartbeat.heartbeat_interval_s;
  options.onWaiting?.(waitS);
  const pollMs = Math.min(5, heartbeat.heartbeat_interval_s) * 1000;
  for (let waitedMs = 0; waitedMs < waitS * 1000; waitedMs += pollMs) {
    await sleep(pollMs, signal);
    const now = await store.get(key, null, signal);
    if (now && !now.equals(first)) throw taken(store, part, parseHeartbeat(now) ?? heartbeat);
  }
}

/** Puts this machine's heartbeat; an overwriting PUT, the only kind besides a skips file. */
export async function putHeartbeat(store: Store, part: Part, document: StatusDocument, signal?: AbortSignal) {
  const body = Buffer.from(JSON.stringify(document));
  await store.put(statusKey(part), body, { crc32c: crc32c(body), createOnly: false, signal });
}

function parseHeartbeat(bytes: Buffer | null): z.infer<typeof Heartbeat> | null {
  if (!bytes) return null;
  try {
    return Heartbeat.parse(JSON.parse(bytes.toString("utf8")));
  } catch {
    // A heartbeat that cannot be read holds nobody: the run it belonged to cannot be told from a dead one.
    return null;
  }
}

function taken(store: Store, part: Part, heartbeat: z.infer<typeof Heartbeat>): RunError {
  return new RunError({
    op: "claim part",
    subject: `${store.address} part ${part.index}/${part.count}`,
    message: `another Forebay works on it: ${heartbeat.run.host}, pid ${heartbeat.run.pid}, heartbeat ${heartbeat.heartbeat_at}`,
    safe: "nothing was changed; the other run goes on",
    hint: `stop it there (forebay stop ${store.address}), take another part (--part i/N), or --take-over if you know it is dead`,
    exit: EXIT.locked,
  });
}
