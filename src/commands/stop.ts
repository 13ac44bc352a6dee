import { sleep } from "../base/backoff.ts";
import { EXIT } from "../base/errors.ts";
import { askSupervisor } from "../control/channel.ts";
import { signalProcess } from "../control/process-identity.ts";
import { lookAtRunDirectory, type RunDirectory } from "../control/run-directory.ts";
import { type Io, printJson, printLine, say } from "./io.ts";
import { runPlace } from "./run-place.ts";
import { standingLines, standingOf } from "./standing.ts";
import type { VerbSpec } from "./verb.ts";

const POLL_MS = 100;
const SAY_EVERY_MS = 10_000;

export const stop: VerbSpec = {
  name: "stop",
  settings: "stop",
  summary: "stop a run on this machine gracefully, and wait until it is gone",
  arguments: [["[address]", "the run"]],
  examples: ["forebay stop s3://bucket/prefix/name", "forebay stop file:runs/first --part 2/4"],
  async run(call) {
    const { io, json } = call;
    const place = runPlace(call);
    const before = await standingOf(place.directory);
    for (const line of standingLines(before)) say(io, line);
    const ran = isRunning(before.look);
    if (ran) {
      await askToStop(before.look, "forebay stop");
      await untilGone(place.directory, io, { keeperToo: true });
    }
    const after = await standingOf(place.directory);
    const committed = after.status?.extraction.batches.committed ?? null;
    if (json)
      printJson(io, { address: place.address, was_running: ran, stopped: true, status: after.status });
    else if (!ran) printLine(io, `nothing runs here (looked in ${place.directory})`);
    else {
      printLine(
        io,
        `stopped: ${committed ?? "?"} batches are committed, ${after.status?.spool.files ?? "?"} wait in the spool`,
      );
      printLine(io, `next: forebay restart ${place.address}`);
    }
    return EXIT.done;
  },
};

function isRunning(look: RunDirectory): boolean {
  return look.supervisor?.alive === true || look.keeper?.alive === true;
}

/** Asks by the channel; by SIGTERM where nobody answers there. */
export async function askToStop(look: RunDirectory, reason: string): Promise<void> {
  const { supervisor, keeper } = look;
  if (supervisor?.alive) {
    try {
      await askSupervisor(supervisor.record, { verb: "stop", reason });
    } catch {
      signalProcess(supervisor.record.process, "SIGTERM");
    }
  } else if (keeper?.alive) {
    // Between two supervisors there is only the keeper to ask.
    signalProcess(keeper.record.process, "SIGTERM");
  }
}

/** Waits until the supervisor that stands there now (and its keeper) is gone. No deadline: Ctrl-C ends the wait only. */
export async function untilGone(directory: string, io: Io, options: { keeperToo: boolean }): Promise<void> {
  const first = lookAtRunDirectory(directory).supervisor?.record.process;
  for (let waitedMs = 0; ; waitedMs += POLL_MS) {
    const { supervisor, keeper } = lookAtRunDirectory(directory);
    const same =
      supervisor?.record.process.pid === first?.pid &&
      supervisor?.record.process.startTicks === first?.startTicks;
    const supervisorGone = !supervisor?.alive || !same;
    if (supervisorGone && !(options.keeperToo && keeper?.alive)) return;
    if (waitedMs > 0 && waitedMs % SAY_EVERY_MS === 0) {
      say(io, `still stopping after ${waitedMs / 1000} s: engines finish, the spool is flushed`);
    }
    await sleep(POLL_MS, io.signal);
  }
}
