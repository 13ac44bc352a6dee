// Preloaded into the data plane's bench process: the monitor, on the same main thread as in a real supervisor.
import { fileURLToPath } from "node:url";
import { isMainThread } from "node:worker_threads";

if (isMainThread) {
  const { silentLog } = await import("../../dist/base/log.js");
  const { History } = await import("../../dist/monitor/history.js");
  const { startMonitor } = await import("../../dist/monitor/server.js");
  const { scriptedRun } = await import("../support/scripted-run.mjs");
  const run = scriptedRun({ nowMs: Date.now });
  const history = new History();
  run.fillHistory(history, 2);
  const monitor = await startMonitor({
    source: run,
    history,
    port: 0,
    log: silentLog,
    nowMs: Date.now,
    pageDirectory: fileURLToPath(new URL("../../dist/web/", import.meta.url)),
  });
  process.send?.({ port: monitor.port });
}
