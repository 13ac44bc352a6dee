// Preloaded into the data plane's bench process: the monitor, fed from the same main thread as in a real supervisor.
import { writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { isMainThread } from "node:worker_threads";

if (isMainThread) {
  const { silentLog } = await import("../../dist/base/log.js");
  const { History } = await import("../../dist/monitor/history.js");
  const { encodeHistory } = await import("../../dist/monitor/history-file.js");
  const { startMonitor } = await import("../../dist/monitor/monitor.js");
  const { scriptedRun } = await import("../support/scripted-run.mjs");
  const run = scriptedRun({ nowMs: Date.now });
  const published = () => ({ document: run.snapshot(), counters: run.counters() });
  const first = published();
  const history = new History();
  run.fillHistory(history, 2);
  const directory = dirname(JSON.parse(process.argv[2]).directory);
  const historyFile = join(directory, "history.json");
  writeFileSync(historyFile, encodeHistory(first.document.run.id, history));
  const monitor = await startMonitor({
    first,
    port: 0,
    statusFile: join(directory, "status.json"),
    historyFile,
    log: silentLog,
    pageDirectory: fileURLToPath(new URL("../../dist/web/", import.meta.url)),
  });
  setInterval(() => monitor.publish(published()), 1_000).unref();
  process.send?.({ port: monitor.port });
}
