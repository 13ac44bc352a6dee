import type { RunState, StatusDocument } from "../run/status.ts";

/** One part's heartbeat as the store holds it, with the store's own clock beside it. */
export interface StoredHeartbeat {
  document: StatusDocument;
  /** Last-Modified of the object and Date of the answer: one clock, the store's. null: it did not say. */
  lastModifiedMs: number | null;
  serverDateMs: number | null;
}

/** What a LIST of the store says is committed: above every heartbeat, which may be a minute old. */
export interface StoredCounts {
  batches: number;
  samples: number;
  tokens: number;
  bytes: number;
}

const ENDED: ReadonlySet<RunState> = new Set(["stopped", "preempted", "done", "done_with_skips", "failed"]);
const HEARTBEATS_MISSED = 3;

/** The document, or the same with state `lost` where its machine has been silent for three intervals. */
export function withLost(heartbeat: StoredHeartbeat): StatusDocument {
  const { document, lastModifiedMs, serverDateMs } = heartbeat;
  if (ENDED.has(document.run.state) || lastModifiedMs === null || serverDateMs === null) return document;
  const silentS = (serverDateMs - lastModifiedMs) / 1000;
  if (silentS <= HEARTBEATS_MISSED * document.heartbeat_interval_s) return document;
  return lost(document, `no heartbeat for ${Math.round(silentS)} s from ${document.run.host}`);
}

/** As `lost`, for a machine known to be silent: by its heartbeat, or because its process is gone. */
export function lost(document: StatusDocument, reason: string): StatusDocument {
  if (ENDED.has(document.run.state)) return document;
  const action = document.run.resume_command;
  return {
    ...document,
    run: { ...document.run, state: "lost", reason, action },
    extraction: { ...document.extraction, agg_rate: 0, tokens: { ...document.extraction.tokens, rate: 0 } },
    engines: document.engines.map((engine) => ({ ...engine, state: "stopped", tokens_per_s: null })),
  };
}

/**
 * All parts as one document. Rates, engines, spools and connections add up over the parts; what is committed comes
 * from `counts`, because each part counts the whole run. The state is the one that most needs a person.
 */
export function mergeParts(documents: StatusDocument[], counts: StoredCounts | null): StatusDocument {
  const newest = documents.reduce((a, b) => (b.generated_at > a.generated_at ? b : a));
  const worst = documents.reduce((a, b) => (NEED[b.run.state] > NEED[a.run.state] ? b : a));
  const merged: StatusDocument = structuredClone(documents.length === 1 ? documents[0]! : newest);
  const total = (of: (document: StatusDocument) => number) =>
    documents.reduce((sum, document) => sum + of(document), 0);
  merged.run = { ...merged.run, state: worst.run.state, reason: worst.run.reason, action: worst.run.action };
  const { extraction } = merged;
  extraction.agg_rate = total((d) => d.extraction.agg_rate);
  extraction.tokens.rate = total((d) => d.extraction.tokens.rate);
  for (const field of ["uploaded", "spooled", "in_engine"] as const) {
    extraction.tokens[field] = total((d) => d.extraction.tokens[field]);
  }
  extraction.hs_local = total((d) => d.extraction.hs_local);
  extraction.batches.in_flight = total((d) => d.extraction.batches.in_flight);
  extraction.shards = renumbered(documents.flatMap((d) => d.extraction.shards));
  merged.engines = renumbered(documents.flatMap((d) => d.engines));
  merged.alerts = documents.flatMap((d) => d.alerts);
  merged.s3.mb_per_s = total((d) => d.s3.mb_per_s);
  merged.s3.inflight = total((d) => d.s3.inflight);
  merged.s3.limit = total((d) => d.s3.limit);
  merged.spool.bytes = total((d) => d.spool.bytes);
  merged.spool.budget_bytes = total((d) => d.spool.budget_bytes);
  merged.spool.files = total((d) => d.spool.files);
  if (counts) {
    extraction.batches.committed = counts.batches;
    extraction.total_processed = counts.samples;
    extraction.tokens.done = counts.tokens;
    extraction.bytes.verified = counts.bytes;
  }
  if (documents.length > 1) extraction.eta = mergedEta(merged);
  extraction.eta_hours = extraction.eta.p50_s === null ? null : extraction.eta.p50_s / 3600;
  return merged;
}

/** How much each state needs a person; the highest of all parts is the run's. */
const NEED: Record<RunState, number> = {
  done: 0,
  done_with_skips: 1,
  running: 2,
  starting: 3,
  stopping: 4,
  stopped: 5,
  preempted: 6,
  degraded: 7,
  stalled: 8,
  lost: 9,
  blocked: 10,
  failed: 11,
};

function renumbered<T extends { shard: number }>(list: T[]): T[] {
  return list.map((item, shard) => ({ ...item, shard }));
}

/** Parts have no common clock of their progress: what is left over what they do together, and no band. */
function mergedEta({ extraction }: StatusDocument): StatusDocument["extraction"]["eta"] {
  const { tokens } = extraction;
  const none = { p10_s: null, p50_s: null, p90_s: null, finish_at: null };
  if (tokens.rate <= 0) return { ...none, reason: "no part is making progress" };
  const leftS = (tokens.total - tokens.done) / tokens.rate;
  return { ...none, p50_s: leftS, reason: "tokens left over the rate of all parts" };
}
