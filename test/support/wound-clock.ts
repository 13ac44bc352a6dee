import type { Clock } from "../../src/engine/clock.ts";

/** A clock that stands still until a test winds it. */
export class WoundClock implements Clock {
  #nowMs = 0;
  #timers: { atMs: number; callback: () => void }[] = [];

  nowMs = (): number => this.#nowMs;

  setTimer = (callback: () => void, ms: number): (() => void) => {
    const timer = { atMs: this.#nowMs + ms, callback };
    this.#timers.push(timer);
    return () => {
      this.#timers = this.#timers.filter((other) => other !== timer);
    };
  };

  /** Calls back what falls due within `ms`, in its order, with the hand at its time. */
  wind(ms: number): void {
    const untilMs = this.#nowMs + ms;
    for (;;) {
      const due = this.#timers.filter(({ atMs }) => atMs <= untilMs).sort((a, b) => a.atMs - b.atMs)[0];
      if (!due) break;
      this.#timers = this.#timers.filter((timer) => timer !== due);
      this.#nowMs = due.atMs;
      due.callback();
    }
    this.#nowMs = untilMs;
  }

  /** Resolves once a timer is set that falls due in `ms` from now. */
  async untilTimer(ms: number): Promise<void> {
    while (!this.#timers.some(({ atMs }) => atMs === this.#nowMs + ms)) {
      await new Promise((resolve) => setImmediate(resolve));
    }
  }
}
