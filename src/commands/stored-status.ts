import { batchBytes, batchCount, batchTokens } from "../plan/plan.ts";
import { readRunRecord } from "../run/record.ts";
import { listHoldings } from "../run/remaining.ts";
import { StatusDocument } from "../run/status.ts";
import { loadStoredRun } from "../run/stored-run.ts";
import type { Store } from "../store/store.ts";
import type { StoredCounts, StoredHeartbeat } from "./merge-status.ts";

const STATUS_PREFIX = "status/";

/** Everything that the store alone says of a run's state. */
export interface StoredStatus {
  heartbeats: StoredHeartbeat[];
  /** null where no run.json stands there. */
  counts: StoredCounts | null;
  totals: { rows: number; batches: number; tokens: number } | null;
}

/** Reads the parts' heartbeats, and counts what is committed by LISTs. */
export async function readStoredStatus(store: Store, signal: AbortSignal): Promise<StoredStatus> {
  const heartbeats: StoredHeartbeat[] = [];
  const keys: string[] = [];
  for await (const { key } of store.list(STATUS_PREFIX, signal)) keys.push(key);
  for (const key of keys.sort()) {
    const heartbeat = await readHeartbeat(store, key, signal);
    if (heartbeat) heartbeats.push(heartbeat);
  }
  if (!(await readRunRecord(store, signal))) return { heartbeats, counts: null, totals: null };
  const { plan, record } = await loadStoredRun(store, { cacheDirectory: null, signal });
  const holdings = await listHoldings(store, {
    batches: batchCount(plan),
    plannedBytes: (batch) => batchBytes(plan, batch),
    signal,
  });
  const counts: StoredCounts = { batches: 0, samples: 0, tokens: 0, bytes: 0 };
  holdings.committed.forEach((committed, batch) => {
    if (!committed) return;
    counts.batches += 1;
    counts.samples += plan.batchStart[batch + 1]! - plan.batchStart[batch]!;
    counts.tokens += batchTokens(plan, batch);
    counts.bytes += batchBytes(plan, batch);
  });
  const { rows, batches, tokens } = record.totals;
  return { heartbeats, counts, totals: { rows, batches, tokens } };
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
