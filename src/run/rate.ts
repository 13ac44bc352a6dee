/** Older than the window these few are kept, so that what comes seldom has a rate between two of it. */
const EVENTS_KEPT = 4;
/** So many times the usual pause is not a pause any more. */
const PAUSES_MAX = 3;

/**
 * How much of something passes a second: over the last `windowS`, or, where it comes so seldom that a window holds
 * little of it, over the last few times it came. Once it has stopped, the rate falls to 0. `nowMs`: monotonic.
 */
export class Rate {
  readonly #windowS: number;
  readonly #nowMs: () => number;
  /** What came in one second each, oldest first. */
  readonly #buckets: { atS: number; amount: number }[] = [];
  #firstMs: number | null = null;

  constructor(windowS: number, nowMs: () => number) {
    this.#windowS = windowS;
    this.#nowMs = nowMs;
  }

  /** Of 0: from now on it is measured; before the first call nothing is. */
  add(amount: number): void {
    const nowMs = this.#nowMs();
    this.#firstMs ??= nowMs;
    const atS = Math.floor(nowMs / 1000);
    const last = this.#buckets.at(-1);
    if (last?.atS === atS) last.amount += amount;
    else this.#buckets.push({ atS, amount });
    this.#forget(nowMs / 1000);
  }

  perSecond(): number {
    if (this.#firstMs === null) return 0;
    const nowS = this.#nowMs() / 1000;
    this.#forget(nowS);
    const [oldest, ...later] = this.#buckets;
    const last = later.at(-1);
    if (oldest && last) {
      // From one time that it came to now: what came then was made before.
      const pauseS = (last.atS - oldest.atS) / later.length;
      if (nowS - last.atS <= PAUSES_MAX * pauseS) return sumOf(later) / (nowS - oldest.atS);
    }
    const spanS = Math.min(this.#windowS, Math.max(1, nowS - this.#firstMs / 1000));
    return sumOf(this.#buckets.filter(({ atS }) => atS > nowS - this.#windowS)) / spanS;
  }

  #forget(nowS: number): void {
    while (this.#buckets.length > EVENTS_KEPT && this.#buckets[0]!.atS <= nowS - this.#windowS) {
      this.#buckets.shift();
    }
  }
}

function sumOf(buckets: readonly { amount: number }[]): number {
  return buckets.reduce((sum, { amount }) => sum + amount, 0);
}
