import { existsSync, readFileSync } from "node:fs";
import { userInfo } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { EXIT } from "../base/errors.ts";
import { plainText } from "../base/log.ts";
import { startKeeper, waitForFirstCommit } from "../control/detach.ts";
import { FILES, type LaunchRecord, writeRecord } from "../control/run-directory.ts";
import { type Io, printJson, printLine, say } from "./io.ts";
import type { RunPlace } from "./run-place.ts";

/** Of keeper.log, shown where the start failed: the error stands at its end. */
const LOG_CHARS_SHOWN = 4_000;

/**
 * Lets the run described by launch.json go on in the background, and returns once it has proven itself: 0 after its
 * first commit, its own exit code where it ended, 75 where it is blocked (and keeps trying).
 */
export async function goDetached(options: {
  io: Io;
  place: RunPlace;
  json: boolean;
  sinceMs: number;
  /** False where a living keeper will start the supervisor. */
  startKeeper: boolean;
  /** Stood in launch.json before, and does so again where what stands there now is not accepted. */
  before: LaunchRecord | null;
}): Promise<number> {
  const { io, place, sinceMs } = options;
  const { directory } = place;
  if (options.startKeeper) {
    startKeeper({
      keeperPath: fileURLToPath(new URL("../control/keeper.js", import.meta.url)),
      directory,
      env: io.env,
    });
  }
  let phase = "";
  const outcome = await waitForFirstCommit({
    directory,
    // A keeper that stands since earlier is ours too.
    sinceMs,
    ownKeeper: options.startKeeper,
    nowMs: Date.now,
    signal: io.signal,
    onStatus: ({ run }) => {
      if (run.phase !== phase) say(io, `${run.state}: ${run.phase}`);
      phase = run.phase;
    },
  });
  const page = "status" in outcome ? outcome.status.run.page_url : null;
  const facts = {
    address: place.address,
    run_directory: directory,
    log: join(directory, FILES.events),
    page_url: page,
    tunnel: page === null ? null : tunnelLine(page, io.env),
  };
  if (outcome.kind === "ended") {
    if (options.before && !outcome.accepted) writeRecord(join(directory, FILES.launch), options.before);
    say(io, lastOf(join(directory, FILES.keeperLog)));
    if (options.json)
      printJson(io, { ...facts, state: "ended", exit_code: outcome.exitCode, reason: outcome.reason });
    else printLine(io, `ended with exit code ${outcome.exitCode}: ${outcome.reason}`);
    return outcome.exitCode;
  }
  const { run } = outcome.status;
  if (options.json) printJson(io, { ...facts, state: run.state, reason: run.reason, action: run.action });
  else {
    if (outcome.kind === "blocked")
      printLine(io, `blocked: ${run.reason ?? "unknown"}; it keeps trying\nnext: ${run.action}`);
    else printLine(io, "working: the first batch is committed");
    printLine(io, `run directory  ${facts.run_directory}`);
    printLine(io, `log            ${facts.log}`);
    if (page) printLine(io, `page           ${page}`);
    if (facts.tunnel) printLine(io, `from a laptop  ${facts.tunnel}`);
    printLine(io, `stop it        forebay stop ${place.address}`);
  }
  return outcome.kind === "blocked" ? EXIT.retryLater : EXIT.done;
}

/** The command that shows this machine's page on a laptop. */
function tunnelLine(page: string, env: NodeJS.ProcessEnv): string {
  const port = new URL(page).port;
  // The address that the person reached this machine by, where they came by ssh.
  const host = env.SSH_CONNECTION?.split(" ")[2] ?? "THIS_MACHINE";
  return `ssh -L ${port}:127.0.0.1:${port} ${userInfo().username}@${host}`;
}

function lastOf(path: string): string {
  if (!existsSync(path)) return "";
  return plainText(readFileSync(path, "utf8").slice(-LOG_CHARS_SHOWN), LOG_CHARS_SHOWN).trimEnd();
}
