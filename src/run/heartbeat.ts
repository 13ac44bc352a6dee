import { sleep } from "../base/backoff.ts";
import { describeError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { Store } from "../store/store.ts";
import { type Part, putHeartbeat } from "./lease.ts";
import type { RunState, StatusDocument } from "./status.ts";

/** How often a run tells the store that it lives; the document says so, for who judges by it whether it is lost. */
export const HEARTBEAT_INTERVAL_S = 60;
/** A heartbeat may fail for long without harm; one that hangs may not hold up the next. */
const PUT_MS_MAX = 20_000;
/** A process that is to end does not wait for a silent store as long as a living one. */
const LAST_PUT_MS_MAX = 5_000;
/** A state that changes back and forth costs a request this often at most. */
const CHANGE_MS_MIN = 5_000;

/**
 * Puts the status document into the store at once, each `intervalS`, when the state has changed, and a last time;
 * failures are logged only.
 */
export class Heartbeat {
  readonly #options: HeartbeatOptions;
  readonly #timer: NodeJS.Timeout;
  #beating: Promise<void>;
  #toldState: RunState | null = null;
  #toldMs = 0;
  /** One waits for the one before it, which may hang: more would only pile up. */
  #isQueued = false;

  constructor(options: HeartbeatOptions) {
    this.#options = options;
    this.#beating = this.#beat();
    this.#timer = setInterval(() => {
      this.#beating = this.#beating.then(() => this.#beat());
    }, options.intervalS * 1000);
  }

  /** Once a second: who looks from elsewhere need not wait for a minute to see that a run is blocked. */
  look(state: RunState): void {
    const isTold = state === this.#toldState || this.#options.nowMs() - this.#toldMs < CHANGE_MS_MIN;
    if (isTold || this.#isQueued) return;
    this.#isQueued = true;
    this.#beating = this.#beating.then(() => this.#beat());
  }

  /** Stops, and says how it ended: who comes next on this part need not wait. */
  async end(): Promise<void> {
    clearInterval(this.#timer);
    await Promise.race([this.#beating, sleep(LAST_PUT_MS_MAX)]);
    await this.#beat(LAST_PUT_MS_MAX);
  }

  async #beat(putMsMax = PUT_MS_MAX): Promise<void> {
    const { store, part, log, nowMs } = this.#options;
    this.#isQueued = false;
    const document = this.#options.document();
    this.#toldState = document.run.state;
    this.#toldMs = nowMs();
    try {
      await putHeartbeat(store, part, document, AbortSignal.timeout(putMsMax));
    } catch (error) {
      log.warn("heartbeat.failed", { reason: describeError(error) });
    }
  }
}

export interface HeartbeatOptions {
  store: Store;
  part: Part;
  intervalS: number;
  document: () => StatusDocument;
  log: Log;
  /** Monotonic. */
  nowMs: () => number;
}
