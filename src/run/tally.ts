import { batchBytes, batchTokens, type Plan } from "../plan/plan.ts";
import { isOfPart, type Part } from "./lease.ts";

/** Work counted in every way that somebody asks for. */
export interface Amount {
  batches: number;
  samples: number;
  tokens: number;
  /** Of pack objects. */
  bytes: number;
  /** Sum of squares over the samples: the cost of attention. */
  tokensSquared: number;
}

/** Where a batch of this part is between dispatch and commit. */
export type Place = "engine" | "ready" | "uploaded";

/**
 * Counts where every batch of one part is: not yet dispatched, in an engine, in ready/, uploaded, committed. The
 * batches that the store already holds are counted at the start, so a resumed run never shows 0.
 */
export class Tally {
  readonly total: Amount = nothing();
  readonly committed: Amount = nothing();
  readonly at: Record<Place, Amount> = { engine: nothing(), ready: nothing(), uploaded: nothing() };
  /** What the store held when this session began. */
  readonly resumedFrom: { batches: number; samples: number };
  readonly #plan: Plan;
  readonly #places = new Map<number, Place>();
  readonly #committed: Uint8Array;

  constructor(plan: Plan, part: Part, committed: Uint8Array) {
    this.#plan = plan;
    this.#committed = committed.slice();
    for (let batch = 0; batch < committed.length; batch += 1) {
      if (!isOfPart(batch, part)) continue;
      const amount = amountOf(plan, batch);
      add(this.total, amount);
      if (committed[batch]) add(this.committed, amount);
    }
    this.resumedFrom = { batches: this.committed.batches, samples: this.committed.samples };
  }

  /** The batch is now at `place`; null: back to where it started (its work is lost and will be done again). */
  move(batch: number, place: Place | null): void {
    if (this.#committed[batch]) return;
    const amount = amountOf(this.#plan, batch);
    const before = this.#places.get(batch);
    if (before) add(this.at[before], amount, -1);
    if (place) {
      add(this.at[place], amount);
      this.#places.set(batch, place);
    } else {
      this.#places.delete(batch);
    }
  }

  /** null: it was counted already (its file outlived a crash after the upload). */
  commit(batch: number): Amount | null {
    if (this.#committed[batch]) return null;
    this.move(batch, null);
    this.#committed[batch] = 1;
    const amount = amountOf(this.#plan, batch);
    add(this.committed, amount);
    return amount;
  }

  /** What no engine has finished: not dispatched, and in an engine. */
  toCompute(): Amount {
    const left = nothing();
    add(left, this.total);
    for (const done of [this.committed, this.at.ready, this.at.uploaded]) add(left, done, -1);
    return left;
  }
}

export function amountOf(plan: Plan, batch: number): Amount {
  const start = plan.batchStart[batch]!;
  const end = plan.batchStart[batch + 1]!;
  let tokensSquared = 0;
  for (let i = start; i < end; i += 1) tokensSquared += plan.tokens[i]! ** 2;
  return {
    batches: 1,
    samples: end - start,
    tokens: batchTokens(plan, batch),
    bytes: batchBytes(plan, batch),
    tokensSquared,
  };
}

function nothing(): Amount {
  return { batches: 0, samples: 0, tokens: 0, bytes: 0, tokensSquared: 0 };
}

function add(sum: Amount, amount: Amount, times = 1): void {
  sum.batches += times * amount.batches;
  sum.samples += times * amount.samples;
  sum.tokens += times * amount.tokens;
  sum.bytes += times * amount.bytes;
  sum.tokensSquared += times * amount.tokensSquared;
}
