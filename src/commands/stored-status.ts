import { batchBytes, batchCount, batchTokens, type Plan, planTotals } from "../plan/plan.ts";
import { readRunRecord } from "../run/record.ts";
import { listHoldings } from "../run/remaining.ts";
import { StatusDocument } from "../run/status.ts";
import { loadStoredRun } from "../run/stored-run.ts";
import type { Store } from "../store/store.ts";
import type { StoredHeartbeat } from "./lost.ts";
import type { StoredAmounts, StoredCounts } from "./merge-parts.ts";

const STATUS_PREFIX = "status/";

/** Everything that the store alone says of a run's state. */
export interface StoredStatus {
  heartbeats: StoredHeartbeat[];
  /** null where no run.json stands there. */
  amounts: StoredAmounts | null;
  /** For the next look: a plan never changes. */
  plan: Plan | null;
}

/** Reads the parts' heartbeats, and counts what is committed by LISTs. `known`: from an earlier look. */
export async function readStoredStatus(
  store: Store,
  options: { known: Plan | null; signal: AbortSignal },
): Promise<StoredStatus> {
  const { signal } = options;
  const heartbeats: StoredHeartbeat[] = [];
  const keys: string[] = [];
  for await (const { key } of store.list(STATUS_PREFIX, signal)) keys.push(key);
  for (const key of keys.sort()) {
    const heartbeat = await readHeartbeat(store, key, signal);
    if (heartbeat) heartbeats.push(heartbeat);
  }
  const plan = options.known ?? (await readPlan(store, signal));
  if (!plan) return { heartbeats, amounts: null, plan };
  const holdings = await listHoldings(store, {
    batches: batchCount(plan),
    plannedBytes: (batch) => batchBytes(plan, batch),
    signal,
  });
  const { batches, planned, tokens, bytes } = planTotals(plan);
  const total = { batches, samples: planned, tokens, bytes };
  return { heartbeats, amounts: { committed: committedOf(plan, holdings.committed), total }, plan };
}

async function readPlan(store: Store, signal: AbortSignal): Promise<Plan | null> {
  if (!(await readRunRecord(store, signal))) return null;
  return (await loadStoredRun(store, { cacheDirectory: null, signal })).plan;
}

function committedOf(plan: Plan, committed: Uint8Array): StoredCounts {
  const counts: StoredCounts = { batches: 0, samples: 0, tokens: 0, bytes: 0 };
  committed.forEach((isCommitted, batch) => {
    if (!isCommitted) return;
    counts.batches += 1;
    counts.samples += plan.batchStart[batch + 1]! - plan.batchStart[batch]!;
    counts.tokens += batchTokens(plan, batch);
    counts.bytes += batchBytes(plan, batch);
  });
  return counts;
}

async function readHeartbeat(
  store: Store,
  key: string,
  signal: AbortSignal,
): Promise<StoredHeartbeat | null> {
  const info = await store.head(key, signal);
  const bytes = await store.get(key, null, signal);
  if (!info || !bytes) return null;
  try {
    const document = StatusDocument.parse(JSON.parse(bytes.toString("utf8")));
    return { document, lastModifiedMs: info.lastModifiedMs, serverDateMs: info.serverDateMs };
  } catch {
    // A heartbeat of another version, or somebody else's object: the other parts still count.
    return null;
  }
}
