export type StageState = "busy" | "starved" | "blocked";

/** Seconds a stage's slots have spent in each state since its start; what `bottleneck` reasons from. */
export type StageSeconds = Record<StageState, number>;

/**
 * Accounts where the slots of one stage spend their time: working, waiting for input, or waiting for room
 * downstream (the busy / starved / blocked of Flink's back-pressure monitor).
 * `nowMs` is the caller's monotonic clock.
 */
export class Stage {
  readonly name: string;
  readonly #nowMs: () => number;
  readonly #slots = new Map<string, { state: StageState; sinceMs: number }>();
  readonly #seconds: StageSeconds = { busy: 0, starved: 0, blocked: 0 };

  constructor(name: string, nowMs: () => number) {
    this.name = name;
    this.#nowMs = nowMs;
  }

  /** Slot `slot` is in `state` from now on; an unknown slot begins its life here. */
  enter(slot: string, state: StageState): void {
    this.#settle(slot);
    this.#slots.set(slot, { state, sinceMs: this.#nowMs() });
  }

  /** Slot `slot` is gone; the time until now is kept. */
  remove(slot: string): void {
    this.#settle(slot);
    this.#slots.delete(slot);
  }

  /** Adds seconds that were measured elsewhere (a worker thread, an engine's own clock). */
  add(seconds: Partial<StageSeconds>): void {
    for (const state of ["busy", "starved", "blocked"] as const) this.#seconds[state] += seconds[state] ?? 0;
  }

  get slots(): number {
    return this.#slots.size;
  }

  seconds(): StageSeconds {
    for (const slot of this.#slots.keys()) this.#settle(slot);
    return { ...this.#seconds };
  }

  #settle(slot: string): void {
    const current = this.#slots.get(slot);
    if (!current) return;
    const nowMs = this.#nowMs();
    this.#seconds[current.state] += (nowMs - current.sinceMs) / 1000;
    current.sinceMs = nowMs;
  }
}
