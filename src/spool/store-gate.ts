export interface StoreGateOptions {
  /** Pace of the probes while a person is needed. */
  reprobeMs: number;
  /** Pace of the probes while the store is down. */
  backoff: { baseMs: number; capMs: number };
  /** Uniform in [0, 1). */
  random: () => number;
}

interface Closed {
  kind: "down" | "blocked";
  reason: string;
  failures: number;
  notBeforeMs: number;
}

/** What a caller should tell the world, or null where nothing changed. */
export type GateChange = "down" | "up" | "blocked" | "unblocked" | null;

/** So many failures in a row, over all packs, mean that it is the store and not one request. */
const DOWN_AFTER_FAILURES = 3;

/**
 * Whether the store serves us. While it does not, one attempt at a time (a probe) finds out when it does again:
 * hundreds of packs that each retry would read their files over and over for nothing. Pure: the caller's clock.
 */
export class StoreGate {
  readonly #options: StoreGateOptions;
  #closed: Closed | null = null;
  #failuresInARow = 0;

  constructor(options: StoreGateOptions) {
    this.#options = options;
  }

  get state(): "ok" | "down" | "blocked" {
    return this.#closed?.kind ?? "ok";
  }

  /** When the next probe may go; 0 while the gate is open. */
  get notBeforeMs(): number {
    return this.#closed?.notBeforeMs ?? 0;
  }

  /** An attempt failed in a way that passes by itself. */
  failed(nowMs: number, reason: string, isProbe: boolean): GateChange {
    this.#failuresInARow += 1;
    const closed = this.#closed;
    if (!closed) {
      if (this.#failuresInARow < DOWN_AFTER_FAILURES) return null;
      this.#closed = { kind: "down", reason, failures: 0, notBeforeMs: nowMs + this.#delayMs(0) };
      return "down";
    }
    if (!isProbe) return null;
    closed.failures += 1;
    closed.notBeforeMs =
      nowMs + (closed.kind === "blocked" ? this.#options.reprobeMs : this.#delayMs(closed.failures));
    return null;
  }

  /** An attempt found that a person is needed. */
  blocked(nowMs: number, reason: string): GateChange {
    const isNews = this.#closed?.kind !== "blocked" || this.#closed.reason !== reason;
    this.#closed = { kind: "blocked", reason, failures: 0, notBeforeMs: nowMs + this.#options.reprobeMs };
    return isNews ? "blocked" : null;
  }

  /** The store did something for us. What began before it blocked us proves nothing about it now. */
  served(isProbe: boolean): GateChange {
    this.#failuresInARow = 0;
    const closed = this.#closed;
    if (!closed || (closed.kind === "blocked" && !isProbe)) return null;
    this.#closed = null;
    return closed.kind === "blocked" ? "unblocked" : "up";
  }

  /** At least half the step: a store that is coming back is not to be met by everyone's zero delays. */
  #delayMs(failures: number): number {
    const { baseMs, capMs } = this.#options.backoff;
    return Math.min(capMs, baseMs * 2 ** failures) * (0.5 + this.#options.random() / 2);
  }
}
