import type { StatusDocument } from "../run/status.ts";
import { hasEnded } from "./merge-parts.ts";

/** One part's heartbeat as the store holds it, with the store's own clock beside it. */
export interface StoredHeartbeat {
  document: StatusDocument;
  /** Last-Modified of the object and Date of the answer: one clock, the store's. null: it did not say. */
  lastModifiedMs: number | null;
  serverDateMs: number | null;
}

const HEARTBEATS_MISSED = 3;

/** The document, or the same with state `lost` where its machine has been silent for three intervals. */
export function withLost(heartbeat: StoredHeartbeat): StatusDocument {
  const { document, lastModifiedMs, serverDateMs } = heartbeat;
  if (hasEnded(document.run.state) || lastModifiedMs === null || serverDateMs === null) return document;
  const silentS = (serverDateMs - lastModifiedMs) / 1000;
  if (silentS <= HEARTBEATS_MISSED * document.heartbeat_interval_s) return document;
  return lost(document, `no heartbeat for ${Math.round(silentS)} s from ${document.run.host}`);
}

/** As `lost`, for a machine known to be silent: by its heartbeat, or because its process is gone. */
export function lost(document: StatusDocument, reason: string): StatusDocument {
  if (hasEnded(document.run.state)) return document;
  const { run, extraction, engines, s3 } = document;
  const eta = { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason };
  // What was under way is not; what was on its disk may still be there.
  const tokens = { ...extraction.tokens, rate: 0, in_engine: 0 };
  const shards = extraction.shards.map((shard) => ({ ...shard, rate_per_sec: 0 }));
  return {
    ...document,
    run: { ...run, state: "lost", reason, action: run.resume_command },
    extraction: { ...extraction, agg_rate: 0, eta_hours: null, eta, tokens, shards },
    engines: engines.map((engine) => ({
      ...engine,
      state: "stopped",
      tokens_total: 0,
      tokens_per_s: null,
      flops_share: null,
    })),
    s3: { ...s3, inflight: 0, mb_per_s: 0 },
  };
}
