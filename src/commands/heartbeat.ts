import { describeError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { pingHeartbeat } from "../control/heartbeat-url.ts";
import type { RunState, StatusSource } from "../run/status.ts";

const EVERY_MS = 60_000;
/** In any other state the silence is the message. */
const WELL: ReadonlySet<RunState> = new Set(["starting", "running", "degraded", "stopping"]);

/** Asks the operator's URL each minute while the run is well. Returns what ends it. */
export function startHeartbeat(url: string, source: StatusSource, log: Log): () => void {
  const ended = new AbortController();
  const ping = () => {
    if (!WELL.has(source.snapshot().run.state)) return;
    pingHeartbeat(url, ended.signal).catch((error: unknown) => {
      // Never the URL itself: it is the key to somebody's pager.
      if (!ended.signal.aborted) log.warn("heartbeat_url.failed", { error: describeError(error) });
    });
  };
  ping();
  const timer = setInterval(ping, EVERY_MS);
  return () => {
    clearInterval(timer);
    ended.abort();
  };
}
