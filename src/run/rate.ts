/**
 * How much of something passed in the last `windowS` seconds, a second. Buckets of one second; `nowMs` is a
 * monotonic clock. Before a whole window has passed it divides by the time since the first event.
 */
export class Rate {
  readonly #windowS: number;
  readonly #nowMs: () => number;
  readonly #buckets = new Map<number, number>();
  #firstMs: number | null = null;

  constructor(windowS: number, nowMs: () => number) {
    this.#windowS = windowS;
    this.#nowMs = nowMs;
  }

  add(amount: number): void {
    const nowMs = this.#nowMs();
    this.#firstMs ??= nowMs;
    const second = Math.floor(nowMs / 1000);
    this.#buckets.set(second, (this.#buckets.get(second) ?? 0) + amount);
    this.#forget(second);
  }

  perSecond(): number {
    if (this.#firstMs === null) return 0;
    const nowMs = this.#nowMs();
    this.#forget(Math.floor(nowMs / 1000));
    let sum = 0;
    for (const amount of this.#buckets.values()) sum += amount;
    const spanS = Math.min(this.#windowS, Math.max(1, (nowMs - this.#firstMs) / 1000));
    return sum / spanS;
  }

  #forget(second: number): void {
    for (const bucket of this.#buckets.keys()) {
      if (bucket > second - this.#windowS) break;
      this.#buckets.delete(bucket);
    }
  }
}
