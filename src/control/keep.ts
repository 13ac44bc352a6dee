import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import type { Log } from "../base/log.ts";
import { identifyProcess } from "./process-identity.ts";
import {
  exitCodeOf,
  exitInWords,
  type RestartHistory,
  restartDecision,
  type SupervisorExit,
} from "./restart-decision.ts";
import { FILES, type KeeperRecord, LaunchRecord, readRecord, writeRecord } from "./run-directory.ts";
import { readStatusFile } from "./status-file.ts";

export interface KeepOptions {
  /** The run directory; launch.json says what to start. */
  directory: string;
  /** Starts one supervisor and resolves when it has ended. `signal` asks it to stop gracefully. */
  supervise(launch: LaunchRecord, signal: AbortSignal): Promise<SupervisorExit>;
  /** Aborts when the keeper itself is asked to end. */
  signal: AbortSignal;
  log: Log;
  random: () => number;
  nowMs: () => number;
}

/**
 * Keeps a supervisor running until it ends for a reason that lasts; resolves with its exit code. A `restart` (a
 * higher generation in launch.json) starts the next one at once, with this process's environment: credentials that
 * came by the environment stay, and never touch the disk.
 */
export async function keepRunning(options: KeepOptions): Promise<number> {
  const { directory, signal, log } = options;
  const keeper: KeeperRecord = {
    process: identifyProcess(process.pid),
    startedAt: new Date(options.nowMs()).toISOString(),
    state: "running",
    restarts: 0,
    lastExit: null,
    decision: null,
  };
  const note = (change: Partial<KeeperRecord>) => {
    Object.assign(keeper, change);
    writeRecord(join(directory, FILES.keeper), keeper);
  };
  const history: RestartHistory = { everCommitted: false, fruitless: 0 };
  for (;;) {
    const launch = requireLaunch(directory);
    note({ state: "running" });
    const startedAt = new Date(options.nowMs()).toISOString();
    const exit = await options.supervise(launch, signal);
    noteCommits(history, directory, startedAt);
    const lastExit = { ...exit, at: new Date(options.nowMs()).toISOString() };
    if (!signal.aborted && requireLaunch(directory).generation > launch.generation) {
      log.info("keeper.restart", { reason: "new settings" });
      note({ lastExit, decision: "restarted with new settings", restarts: keeper.restarts + 1 });
      continue;
    }
    const decision = signal.aborted
      ? { kind: "end" as const, reason: "it was asked to stop" }
      : restartDecision(exit, history, options.random);
    if (decision.kind === "end") {
      log.info("keeper.end", { exit: exitInWords(exit), reason: decision.reason });
      note({ state: "ended", lastExit, decision: decision.reason });
      return exitCodeOf(exit);
    }
    log.warn("keeper.restart", { reason: decision.reason, after_ms: decision.afterMs });
    note({ state: "waiting", lastExit, decision: `restart after ${decision.reason}` });
    try {
      await sleep(decision.afterMs, signal);
    } catch {
      // Asked to end while nothing runs: there is nothing to stop.
      note({ state: "ended", decision: "it was asked to stop" });
      return exitCodeOf(exit);
    }
    note({ restarts: keeper.restarts + 1 });
  }
}

function noteCommits(history: RestartHistory, directory: string, startedAt: string): void {
  const status = readStatusFile(directory);
  const committedAt = status?.extraction.last_commit_at ?? null;
  const committed = committedAt !== null && committedAt >= startedAt;
  history.everCommitted ||= committed;
  history.fruitless = committed ? 1 : history.fruitless + 1;
}

function requireLaunch(directory: string): LaunchRecord {
  const launch = readRecord(join(directory, FILES.launch), LaunchRecord);
  if (!launch) throw new Error(`${join(directory, FILES.launch)} is gone or damaged`);
  return launch;
}
