import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import { askSupervisor } from "./channel.ts";
import { isProcessAlive } from "./process-identity.ts";
import { exitCodeOf } from "./restart-decision.ts";
import { FILES, KeeperRecord, readRecord, SupervisorRecord } from "./run-directory.ts";
import { readStatusFile, StatusFields } from "./status-file.ts";

const POLL_MS = 200;
/** A keeper that has not written its first record by then did not start. */
const KEEPER_START_MS_MAX = 15_000;

/** Starts the keeper in a session of its own, so that closing the terminal does not reach it. */
export function startKeeper(options: {
  /** Path of the built keeper.js. */
  keeperPath: string;
  /** The run directory, with launch.json written. */
  directory: string;
  env: NodeJS.ProcessEnv;
}): void {
  const log = openSync(join(options.directory, FILES.keeperLog), "a", 0o600);
  try {
    const child = spawn(process.execPath, [options.keeperPath, options.directory], {
      cwd: options.directory,
      env: options.env,
      detached: true,
      stdio: ["ignore", log, log],
    });
    // A failed start shows as a keeper that never writes its record.
    child.on("error", () => {});
    child.unref();
  } finally {
    closeSync(log);
  }
}

export type DetachOutcome =
  | { kind: "working"; status: StatusFields }
  | { kind: "blocked"; status: StatusFields }
  /** `accepted`: its settings and inputs were, before it ended. */
  | { kind: "ended"; exitCode: number; reason: string; accepted: boolean };

/**
 * Waits until the detached run has proven itself: its first commit since `sinceMs`, or its end, or that it is
 * blocked and says what a person must do. There is no deadline: loading a model takes as long as it takes, and
 * `onStatus` shows that it goes on.
 */
export async function waitForFirstCommit(options: {
  directory: string;
  sinceMs: number;
  /** Whether the keeper was started after `sinceMs`; else one that stands since earlier is waited with. */
  ownKeeper: boolean;
  nowMs: () => number;
  onStatus: (status: StatusFields) => void;
  signal?: AbortSignal;
}): Promise<DetachOutcome> {
  const { directory, sinceMs } = options;
  const since = new Date(sinceMs).toISOString();
  for (;;) {
    const keeper = readRecord(join(directory, FILES.keeper), KeeperRecord);
    const ours = keeper && (!options.ownKeeper || keeper.startedAt >= since) ? keeper : null;
    const status = await statusSince(directory, since);
    const accepted = status !== null && status.run.id !== "";
    if (status) {
      options.onStatus(status);
      const committedAt = status.extraction.last_commit_at;
      if (committedAt !== null && committedAt >= since) return { kind: "working", status };
      if (status.run.state === "blocked") return { kind: "blocked", status };
    }
    if (ours?.state === "ended") {
      const exitCode = ours.lastExit ? exitCodeOf({ ...ours.lastExit }) : 1;
      return { kind: "ended", exitCode, reason: ours.decision ?? "it ended", accepted };
    }
    const dead = ours ? !isProcessAlive(ours.process) : options.nowMs() - sinceMs > KEEPER_START_MS_MAX;
    if (dead) {
      const reason = `it died; ${join(directory, FILES.keeperLog)}`;
      return { kind: "ended", exitCode: 1, reason, accepted };
    }
    await sleep(POLL_MS, options.signal);
  }
}

/** Until a start is accepted the file is an earlier session's, and only the supervisor itself tells how far it is. */
async function statusSince(directory: string, since: string): Promise<StatusFields | null> {
  const status = readStatusFile(directory);
  if (status && status.generated_at >= since) return status;
  const supervisor = readRecord(join(directory, FILES.supervisor), SupervisorRecord);
  if (!supervisor || supervisor.startedAt < since) return null;
  try {
    return StatusFields.parse(await askSupervisor(supervisor, { verb: "status" }));
  } catch {
    // It is just ending.
    return null;
  }
}
