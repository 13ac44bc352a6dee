import { Rate } from "./rate.ts";
import type { RunCounters } from "./status.ts";
import type { Amount } from "./tally.ts";

/** What one engine has finished in this session. */
export interface ShardWork {
  samples: number;
  tokens: number;
  batches: number;
  samplesRate: Rate;
  /** ISO 8601; null before its first batch. */
  lastAt: string | null;
}

/** Of a batch's weight in the mean length, what is left of it after the next one: the last ten count for most. */
const KEPT = 0.9;

/** Counts what each engine finishes. */
export class ShardTally {
  readonly #nowMs: () => number;
  readonly #windowS: number;
  readonly #shards = new Map<number, ShardWork>();
  readonly #recent = { tokens: 0, tokensSquared: 0 };

  /** `windowS`: of the rates; `nowMs`: monotonic. */
  constructor(windowS: number, nowMs: () => number) {
    this.#windowS = windowS;
    this.#nowMs = nowMs;
  }

  finished(shard: number, amount: Amount, at: string): void {
    const work = this.of(shard);
    work.samples += amount.samples;
    work.tokens += amount.tokens;
    work.batches += 1;
    work.samplesRate.add(amount.samples);
    work.lastAt = at;
    this.#recent.tokens = KEPT * this.#recent.tokens + amount.tokens;
    this.#recent.tokensSquared = KEPT * this.#recent.tokensSquared + amount.tokensSquared;
  }

  of(shard: number): ShardWork {
    let work = this.#shards.get(shard);
    if (!work) {
      const samplesRate = new Rate(this.#windowS, this.#nowMs);
      work = { samples: 0, tokens: 0, batches: 0, samplesRate, lastAt: null };
      this.#shards.set(shard, work);
    }
    return work;
  }

  /** How long the sample is that a token lately stood in, on average; null before the first batch. */
  meanTokens(): number | null {
    const { tokens, tokensSquared } = this.#recent;
    return tokens > 0 ? tokensSquared / tokens : null;
  }

  counts(): RunCounters["tokensByShard"] {
    return [...this.#shards].map(([shard, { samples, tokens, batches }]) => ({
      shard,
      samples,
      tokens,
      batches,
    }));
  }
}
