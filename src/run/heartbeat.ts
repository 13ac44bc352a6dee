import { describeError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { Store } from "../store/store.ts";
import { type Part, putHeartbeat } from "./lease.ts";
import type { StatusDocument } from "./status.ts";

/** A heartbeat may fail for long without harm; one that hangs may not hold up the next. */
const PUT_MS_MAX = 20_000;

/** Puts the status document into the store at once, each `intervalS`, and a last time; failures are logged only. */
export class Heartbeat {
  readonly #options: HeartbeatOptions;
  readonly #timer: NodeJS.Timeout;
  #beating: Promise<void>;

  constructor(options: HeartbeatOptions) {
    this.#options = options;
    this.#beating = this.#beat();
    this.#timer = setInterval(() => {
      this.#beating = this.#beating.then(() => this.#beat());
    }, options.intervalS * 1000);
  }

  /** Stops, and says how it ended: who comes next on this part need not wait. */
  async end(): Promise<void> {
    clearInterval(this.#timer);
    await this.#beating;
    await this.#beat();
  }

  async #beat(): Promise<void> {
    const { store, part, document, log } = this.#options;
    try {
      await putHeartbeat(store, part, document(), AbortSignal.timeout(PUT_MS_MAX));
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
}
