/** Upper bounds of the request histogram, in seconds: from a LAN's HEAD to a WAN's 64 MiB PUT. */
const BOUNDS_S = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60] as const;

const RECENT = 512;

/** Durations of requests: a cumulative histogram for Prometheus, and percentiles of the newest 512. */
export class Latency {
  readonly #counts = BOUNDS_S.map(() => 0);
  readonly #recentS: number[] = [];
  #next = 0;
  #sumS = 0;
  #count = 0;

  add(seconds: number): void {
    this.#sumS += seconds;
    this.#count += 1;
    BOUNDS_S.forEach((bound, i) => {
      if (seconds <= bound) this.#counts[i]! += 1;
    });
    this.#recentS[this.#next] = seconds;
    this.#next = (this.#next + 1) % RECENT;
  }

  /** In ms; null before the first. */
  percentileMs(share: number): number | null {
    if (this.#recentS.length === 0) return null;
    const sorted = [...this.#recentS].sort((a, b) => a - b);
    return 1000 * sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))]!;
  }

  histogram(): { boundsS: number[]; counts: number[]; sumS: number; count: number } {
    return { boundsS: [...BOUNDS_S], counts: [...this.#counts], sumS: this.#sumS, count: this.#count };
  }
}
