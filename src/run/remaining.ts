import {
  batchOfPackKey,
  batchOfSkipsKey,
  isOwnKey,
  PACKS_PREFIX,
  packLanes,
  SKIPS_PREFIX,
} from "../store/keys.ts";
import type { ObjectInfo, Store } from "../store/store.ts";
import { isOfPart, type Part } from "./lease.ts";

/** What the store holds of a plan: the truth that every resume starts from. */
export interface Holdings {
  /** One byte a batch: 1 where an object of exactly the planned size stands under its key. */
  committed: Uint8Array;
  committedCount: number;
  committedBytes: number;
  /** Objects under a batch's key with another size: never believed, never overwritten; named for repair. */
  torn: { key: string; bytes: number; plannedBytes: number }[];
  /** Keys that no run of this plan makes: ignored and counted. */
  aliens: string[];
  /** Batches that have a skips file; their packs' headers say which rows were really skipped. */
  withSkips: number[];
}

export interface HoldingsOptions {
  batches: number;
  /** The planned object size of a batch, pure. */
  plannedBytes: (batch: number) => number;
  /** Prefixes to LIST side by side. Default: the packs' sixteen lanes and the skips; [""] sees aliens anywhere. */
  prefixes?: string[];
  signal?: AbortSignal;
}

/** LISTs the run's packs and skips, and holds them against the plan. */
export async function listHoldings(store: Store, options: HoldingsOptions): Promise<Holdings> {
  const holdings: Holdings = {
    committed: new Uint8Array(options.batches),
    committedCount: 0,
    committedBytes: 0,
    torn: [],
    aliens: [],
    withSkips: [],
  };
  const listOne = async (prefix: string) => {
    for await (const object of store.list(prefix, options.signal)) note(holdings, object, options);
  };
  const prefixes = options.prefixes ?? [...packLanes(), SKIPS_PREFIX];
  for (const outcome of await Promise.allSettled(prefixes.map(listOne))) {
    if (outcome.status === "rejected") throw outcome.reason;
  }
  return holdings;
}

/** The batches of `part` that are not committed, in plan order. */
export function remainingBatches(holdings: Holdings, part: Part): number[] {
  const remaining: number[] = [];
  for (let batch = 0; batch < holdings.committed.length; batch += 1) {
    if (!holdings.committed[batch] && isOfPart(batch, part)) remaining.push(batch);
  }
  return remaining;
}

function note(holdings: Holdings, object: ObjectInfo, options: HoldingsOptions): void {
  const { key, bytes } = object;
  if (key.startsWith(PACKS_PREFIX)) {
    const batch = batchOfPackKey(key);
    if (batch === null || batch >= options.batches) {
      holdings.aliens.push(key);
      return;
    }
    const planned = options.plannedBytes(batch);
    if (bytes !== planned) {
      holdings.torn.push({ key, bytes, plannedBytes: planned });
    } else if (!holdings.committed[batch]) {
      holdings.committed[batch] = 1;
      holdings.committedCount += 1;
      holdings.committedBytes += planned;
    }
  } else if (key.startsWith(SKIPS_PREFIX)) {
    const batch = batchOfSkipsKey(key);
    if (batch === null || batch >= options.batches) holdings.aliens.push(key);
    else holdings.withSkips.push(batch);
  } else if (!isOwnKey(key)) {
    holdings.aliens.push(key);
  }
}
