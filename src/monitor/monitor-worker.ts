/** The monitor's thread: it answers whatever the main thread is busy with, and keeps the run directory's files. */
import { existsSync } from "node:fs";
import { parentPort, workerData } from "node:worker_threads";
import { EXIT, RunError, type RunErrorFields } from "../base/errors.ts";
import type { Log, LogFields } from "../base/log.ts";
import { History } from "./history.ts";
import { encodeHistory, readHistory } from "./history-file.ts";
import { KeptFile } from "./kept-file.ts";
import { type MonitorServer, type Published, type ServerOptions, startServer } from "./server.ts";

export interface MonitorThreadData
  extends Pick<ServerOptions, "first" | "port" | "nextFreePort" | "pageDirectory" | "stream"> {
  statusFile: string | null;
  historyFile: string | null;
}

export type ToMonitorThread = { kind: "publish"; published: Published } | { kind: "close"; last: Published };

export type FromMonitorThread =
  | { kind: "listening"; url: string; port: number }
  | { kind: "refused"; error: RunErrorFields }
  /** Ready for the next document. */
  | { kind: "taken" }
  | { kind: "log"; level: keyof Log; event: string; fields: LogFields };

/** What a SIGKILL takes of the charts is less than the gap that it makes in them. */
const KEEP_HISTORY_MS = 10_000;

const { first, statusFile, historyFile, ...options } = workerData as MonitorThreadData;
const say = (message: FromMonitorThread) => parentPort!.postMessage(message);
const logAt =
  (level: keyof Log) =>
  (event: string, fields: LogFields = {}) =>
    say({ kind: "log", level, event, fields });
const log: Log = { debug: logAt("debug"), info: logAt("info"), warn: logAt("warn"), error: logAt("error") };

const history = new History();
const startS = Date.now() / 1_000;
const kept = historyFile === null ? { run: "", points: [] } : readHistory(historyFile, startS);
history.restore(kept.points);
let runId = kept.run;
/** What an earlier session left stands until this one knows which run it is: one that is refused never does. */
let isHeld = statusFile !== null && existsSync(statusFile);
const files = {
  status: statusFile === null ? null : new KeptFile(statusFile),
  history: historyFile === null ? null : new KeptFile(historyFile),
};

startServer({ ...options, first, history, log, nowMs: Date.now }).then(serve, (error: unknown) => {
  say({ kind: "refused", error: fieldsOf(error) });
  parentPort!.close();
});

function serve(server: MonitorServer): void {
  keep(first);
  const keeping = setInterval(keepHistory, KEEP_HISTORY_MS);
  parentPort!.on("message", (message: ToMonitorThread) => {
    switch (message.kind) {
      case "publish":
        keep(message.published);
        server.publish(message.published);
        say({ kind: "taken" });
        return;
      case "close":
        clearInterval(keeping);
        keep(message.last);
        server.publish(message.last);
        keepHistory();
        void Promise.all([server.close(), files.status?.settled(), files.history?.settled()]).finally(() =>
          parentPort!.close(),
        );
    }
  });
  say({ kind: "listening", url: server.url, port: server.port });
}

function keep({ document }: Published): void {
  const { id } = document.run;
  if (id !== "") isHeld = false;
  if (!isHeld) files.status?.replace(JSON.stringify(document));
  if (id === "" || id === runId) return;
  // Another run stands at this address now: the past that was found is not its own.
  if (runId !== "") history.restore(history.points().filter(({ t }) => t >= startS));
  runId = id;
}

function keepHistory(): void {
  if (!isHeld) files.history?.replace(encodeHistory(runId, history));
}

function fieldsOf(error: unknown): RunErrorFields {
  if (!(error instanceof RunError))
    return { op: "open monitor", subject: "its thread", message: String(error), exit: EXIT.bug };
  const { op, subject, message, safe, hint, remedy, exit } = error;
  return { op, subject, message, safe, hint, remedy, exit };
}
