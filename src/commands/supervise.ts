import { setMaxListeners } from "node:events";
import { hostname } from "node:os";
import { join } from "node:path";
import { EXIT, type ExitCode } from "../base/errors.ts";
import { makeLog } from "../base/log.ts";
import type { Resolved } from "../config/resolve.ts";
import { type ControlServer, serveControl } from "../control/channel.ts";
import { eventFile } from "../control/event-log.ts";
import { runOnExit } from "../control/on-exit.ts";
import { identifyProcess, isProcessAlive, type ProcessIdentity } from "../control/process-identity.ts";
import {
  FILES,
  lookAtRunDirectory,
  makeRunDirectory,
  type SupervisorRecord,
  writeRecord,
} from "../control/run-directory.ts";
import { type Monitor, startMonitor } from "../monitor/monitor.ts";
import { type GpuWatch, watchGpus } from "../monitor/nvidia-smi.ts";
import { type ExtractResult, extract } from "../run/extract.ts";
import { HEARTBEAT_INTERVAL_S } from "../run/heartbeat.ts";
import type { LiveControls } from "../run/options.ts";
import { StatusBoard } from "../run/status-board.ts";
import { extractOptions } from "./extract-options.ts";
import { withGpus } from "./gpus.ts";
import { startHeartbeat } from "./heartbeat.ts";
import { type Io, printJson, printLine, SignalReceived } from "./io.ts";
import { exitCodeFor } from "./print-error.ts";
import { makeProgress } from "./progress.ts";
import { countText } from "./progress-lines.ts";
import type { RunPlace } from "./run-place.ts";

export interface SuperviseInput {
  io: Io;
  verb: "run" | "resume";
  place: RunPlace;
  settings: Resolved;
  /** The result as one line of JSON on stdout. */
  json: boolean;
  /** Started by a keeper, which runs `--on-exit` itself; nobody watches stderr. */
  kept: boolean;
  /** False where the caller has more to say about the result than the usual two lines. */
  sayResult?: boolean;
  /** Settings and inputs were accepted: only now may they replace those of an earlier start. */
  onAccepted?: () => void;
}

/**
 * One extraction in this process, with everything around it: event log, status file, control channel, page and
 * progress. Resolves with the exit code; throws what the extraction throws, after all of that is closed.
 */
export async function supervise(input: SuperviseInput): Promise<number> {
  const { onExit } = input.settings.values;
  const runCommand = async (exitCode: number) => {
    if (onExit === null || input.kept) return;
    const { env, directory } = input.io;
    await runOnExit({ command: onExit, exitCode, env, directory });
  };
  try {
    const { exit } = await superviseOnce(input);
    await runCommand(exit);
    return exit;
  } catch (error) {
    await runCommand(exitCodeFor(error));
    throw error;
  }
}

export async function superviseOnce(input: SuperviseInput): Promise<ExtractResult> {
  const { io, place, settings } = input;
  const { values } = settings;
  const { directory } = place;
  const options = extractOptions({ verb: input.verb, place, settings, env: io.env });
  makeRunDirectory(directory);
  // Read before our own record takes its place, which it keeps only where this start is accepted.
  const before = lookAtRunDirectory(directory).supervisor?.record ?? null;
  const recordFile = join(directory, FILES.supervisor);
  let isAccepted = false;

  const clock = { nowMs: () => performance.now(), wallMs: Date.now };
  let gpus: GpuWatch | null = null;
  const board = new StatusBoard(
    {
      appVersion: options.appVersion,
      address: place.address,
      name: place.address
        .split("/")
        .at(-1)!
        .replace(/^file:/, ""),
      part: options.part,
      host: hostname(),
      pid: process.pid,
      runDirectory: directory,
      spoolDirectory: options.spool.directory,
      spoolBudgetBytes: options.spool.budgetBytes,
      resumeCommand: options.resumeCommand,
      settings: options.settings,
      heartbeatIntervalS: HEARTBEAT_INTERVAL_S,
      price: options.price,
    },
    clock,
    (document) => withGpus(document, gpus?.readings() ?? []),
  );
  const progress = makeProgress(input.kept ? "quiet" : values.progress, io, clock.nowMs);
  // A log that cannot be written (the disk is full) is shown by what fills the disk, not by more lines about it.
  const toFile = eventFile(join(directory, FILES.events), () => {});
  const log = makeLog([toFile, (event) => board.event(event), (event) => progress.event(event)], Date.now);

  const stop = stopSwitch(io.signal);
  let controls: LiveControls | null = null;
  gpus = watchGpus({ env: io.env, log, nowMs: clock.nowMs });
  let control: ControlServer | null = null;
  let monitor: Monitor | null = null;
  let stopHeartbeat = () => {};
  try {
    control = await serveControl({
      status: () => board.snapshot(),
      set: (limits) => {
        if (!controls) throw new Error("the run is still starting: there are no uploads yet");
        controls.setUploads(limits);
        log.info("control.set", {
          uploads: limits.uploads ?? null,
          inflight_bytes: limits.inflightBytes ?? null,
        });
        return limits;
      },
      stop: (reason) => {
        log.info("control.stop", { reason });
        stop.now(EXIT.terminated);
        return {};
      },
    });
    monitor = await startMonitor({
      first: published(board),
      port: values.port,
      statusFile: join(directory, FILES.status),
      historyFile: join(directory, FILES.history),
      log,
    });
    board.pageUrl(monitor.url);
    monitor.publish(published(board));
    writeRecord(recordFile, supervisorRecord(input, options.spool.directory, control, monitor.url));
    if (values.heartbeatUrl !== null) stopHeartbeat = startHeartbeat(values.heartbeatUrl, board, log);
    const result = await extract(options, {
      log,
      board,
      host: hostname(),
      pidAlive: (pid) => pidAlive(pid, before?.process ?? null),
      random: Math.random,
      ...clock,
      stop: stop.signal,
      stopExit: stop.exitCode,
      onAccepted: () => {
        isAccepted = true;
        input.onAccepted?.();
      },
      onLive: (live) => {
        controls = live;
      },
      onTick: (document) => {
        monitor?.publish({ document, counters: board.counters() });
        progress.update(document);
      },
    });
    progress.finish();
    if (input.sayResult !== false) sayResult(input, result);
    return result;
  } finally {
    stopHeartbeat();
    gpus.close();
    progress.finish();
    await monitor?.close(published(board));
    await control?.close();
    if (before && !isAccepted) writeRecord(recordFile, before);
  }
}

function published(board: StatusBoard) {
  return { document: board.snapshot(), counters: board.counters() };
}

/** Joins the process's signals and the control channel's stop into one, and remembers the exit code that it means. */
function stopSwitch(signals: AbortSignal) {
  const asked = new AbortController();
  setMaxListeners(0, asked.signal);
  let exitCode: ExitCode = EXIT.terminated;
  const now = (code: ExitCode) => {
    if (asked.signal.aborted) return;
    exitCode = code;
    asked.abort();
  };
  const onSignal = () => {
    const { reason } = signals;
    now(reason instanceof SignalReceived ? reason.exitCode : EXIT.terminated);
  };
  if (signals.aborted) onSignal();
  signals.addEventListener("abort", onSignal, { once: true });
  return { signal: asked.signal, now, exitCode: () => exitCode };
}

function supervisorRecord(
  { place, settings }: SuperviseInput,
  spool: string,
  control: ControlServer,
  pageUrl: string,
): SupervisorRecord {
  return {
    process: identifyProcess(process.pid),
    startedAt: new Date().toISOString(),
    address: place.address,
    part: settings.values.part,
    socket: control.socket,
    token: control.token,
    pageUrl,
    spool,
  };
}

/**
 * Whether the run's last supervisor, known by its pid, lives here. Its record in the run directory tells it from a
 * later process with the same pid; our own pid in a heartbeat is always a dead one's (a container started anew).
 */
function pidAlive(pid: number, before: ProcessIdentity | null): boolean {
  if (pid === process.pid) return false;
  if (before?.pid === pid) return isProcessAlive(before);
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

function sayResult({ io, place, json }: SuperviseInput, { exit, reason, document }: ExtractResult): void {
  const { run, extraction } = document;
  if (json) {
    const { total_processed, total, skipped, batches, tokens, bytes } = extraction;
    const counts = {
      samples: total_processed,
      total,
      skipped,
      batches,
      tokens: tokens.done,
      bytes: bytes.verified,
    };
    printJson(io, { address: place.address, state: run.state, exit_code: exit, reason, ...counts });
    return;
  }
  printLine(
    io,
    `${run.state.replaceAll("_", " ")}: ${countText(extraction.total_processed)} of ${countText(extraction.total)} samples ` +
      `are in ${place.address}${reason ? ` (${reason})` : ""}`,
  );
  const done = exit === EXIT.done || exit === EXIT.doneWithSkips;
  printLine(io, `next: ${done ? `forebay verify ${place.address}` : run.resume_command}`);
}
