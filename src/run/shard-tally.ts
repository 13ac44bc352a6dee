import { Rate } from "./rate.ts";
import type { RunCounters } from "./status.ts";
import type { Amount } from "./tally.ts";

/** What one engine has finished in this session. */
export interface ShardWork {
  samples: number;
  tokens: number;
  batches: number;
  /** Of these, batches that the store has confirmed. */
  committed: number;
  samplesRate: Rate;
  /** ISO 8601; null before the first of its batches is committed. */
  lastCommitAt: string | null;
}

/** Of a batch's weight in the mean length, what is left of it after the next one: the last ten count for most. */
const KEPT = 0.9;

/** Counts what each engine finishes. */
export class ShardTally {
  readonly #nowMs: () => number;
  readonly #windowS: number;
  readonly #shards = new Map<number, ShardWork>();
  /** Who made a batch that is not committed yet. */
  readonly #makers = new Map<number, number>();
  readonly #recent = { tokens: 0, tokensSquared: 0 };

  /** `windowS`: of the rates; `nowMs`: monotonic. */
  constructor(windowS: number, nowMs: () => number) {
    this.#windowS = windowS;
    this.#nowMs = nowMs;
  }

  finished(shard: number, batch: number, amount: Amount): void {
    const work = this.of(shard);
    this.#makers.set(batch, shard);
    work.samples += amount.samples;
    work.tokens += amount.tokens;
    work.batches += 1;
    work.samplesRate.add(amount.samples);
    this.#recent.tokens = KEPT * this.#recent.tokens + amount.tokens;
    this.#recent.tokensSquared = KEPT * this.#recent.tokensSquared + amount.tokensSquared;
  }

  /** One of an earlier session has no engine here. */
  committed(batch: number, at: string): void {
    const shard = this.#makers.get(batch);
    if (shard === undefined) return;
    this.#makers.delete(batch);
    const work = this.of(shard);
    work.committed += 1;
    work.lastCommitAt = at;
  }

  of(shard: number): ShardWork {
    let work = this.#shards.get(shard);
    if (!work) {
      const samplesRate = new Rate(this.#windowS, this.#nowMs);
      work = { samples: 0, tokens: 0, batches: 0, committed: 0, samplesRate, lastCommitAt: null };
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
    return [...this.#shards].map(([shard, { samples, tokens, batches, committed }]) => ({
      shard,
      samples,
      tokens,
      batches,
      committed,
    }));
  }
}
