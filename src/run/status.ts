import { z } from "zod";

/**
 * The one status document (schema_version 1, additive only): the page, `forebay status`, the terminal view,
 * `/api/status`, status.json in the run directory and status/<part>.json in the store all hold exactly this.
 * `null` is unknown, never zero. Seconds, bytes, tokens; times are ISO 8601 UTC.
 */

export const RUN_STATES = [
  "starting",
  "running",
  "stalled",
  "degraded",
  "blocked",
  "stopping",
  "stopped",
  "preempted",
  "done",
  "done_with_skips",
  "failed",
  "lost",
] as const;
export type RunState = (typeof RUN_STATES)[number];

const count = z.number().int().nonnegative();
const amount = z.number().nonnegative();
const maybe = amount.nullable();
const time = z.string();

const Eta = z.object({
  p10_s: maybe,
  p50_s: maybe,
  p90_s: maybe,
  finish_at: time.nullable(),
  /** Why there is no estimate yet, or what bounds it: "compute" | "upload" | a sentence. */
  reason: z.string(),
});

/** One engine under its legacy name; engines pull, so `total` and `total_batches` are the run's, the same for each. */
const Shard = z.object({
  shard: count.describe("engine number"),
  processed: count.describe("samples this engine has finished in this session"),
  total: count.describe("samples of the run: engines pull, so it is the same for each"),
  rate_per_sec: amount.describe("samples/s of this engine, last minute"),
  batch: count.describe("batches this engine has finished in this session"),
  total_batches: count.describe("batches of the run, the same for each engine"),
});

const Gpu = z.object({
  index: count,
  name: z.string().nullable().default(null).describe("as nvidia-smi has it"),
  util: maybe.describe("percent"),
  mem_used: maybe.describe("bytes"),
  mem_total: maybe.describe("bytes"),
  power: maybe.describe("watts"),
  temp: maybe.describe("degrees Celsius"),
});

export const EngineStatus = z.object({
  shard: count,
  name: z.string(),
  state: z.enum(["starting", "loading", "running", "idle", "restarting", "stopped", "failed"]),
  pid: count.nullable(),
  device: z.string().nullable(),
  devices: z
    .array(z.string())
    .default([])
    .describe("the GPUs that it computes on: UUIDs, or numbers as nvidia-smi counts"),
  tokens_done: count,
  tokens_total: count.describe("tokens of the batches now in the engine"),
  tokens_per_s: maybe,
  restarts: count,
  last_commit_at: time.nullable().describe("of a batch that it made"),
  last_error: z.string().nullable(),
  flops_share: maybe.describe(
    "tokens_per_s x extraction.flops_per_token over the dense bf16 peak of its cards, 0-1; null on a CPU, on a card " +
      "whose peak is not known, and where flops_per_token is",
  ),
  gpu: Gpu.nullable().describe("of its first card"),
});

export const StageStatus = z.object({
  name: z.enum(["compute", "pack", "disk", "upload", "verify"]),
  slots: count,
  busy: amount.describe("seconds over all slots"),
  starved: amount.describe("seconds over all slots"),
  blocked: amount.describe("seconds over all slots"),
  queue: count,
  capacity: count.nullable(),
  rate: maybe.describe("bytes/s through the stage, last 30 s"),
});

export const Bottleneck = z.object({
  stage: z.enum(["compute", "pack", "disk", "upload", "verify"]).nullable(),
  cause: z
    .string()
    .describe("throttled | sockets | bandwidth | verify | fsync | budget | engine | none | unknown"),
  confidence: amount.describe("0-1"),
  advice: z.string(),
});

export const RunEvent = z.object({
  at: time,
  level: z.enum(["debug", "info", "warn", "error"]),
  event: z.string(),
  fields: z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()])),
});

const Alert = z.object({
  level: z.enum(["warn", "error"]),
  text: z.string(),
  action: z.string().nullable(),
});

export const StatusDocument = z.object({
  schema_version: z.literal(1),
  app_version: z.string(),
  generated_at: time,
  heartbeat_at: time,
  heartbeat_interval_s: amount,
  run: z.object({
    id: z.string().describe("first 16 hex digits of the identity's hash"),
    name: z.string(),
    address: z.string(),
    part: z.object({ index: count, count }),
    state: z.enum(RUN_STATES),
    phase: z.string(),
    state_since: time,
    reason: z.string().nullable(),
    action: z.string().nullable(),
    host: z.string(),
    pid: count,
    started_at: time,
    resumed_from: z.object({ batches: count, samples: count }).nullable(),
    page_url: z.string().nullable(),
    run_directory: z.string(),
    resume_command: z.string(),
    exit_code: z.number().int().nullable(),
    settings: z.record(z.string(), z.union([z.string(), z.number(), z.boolean(), z.null()])),
  }),
  extraction: z.object({
    total_processed: count.describe("samples committed"),
    total: count,
    agg_rate: amount.describe("samples/s"),
    eta_hours: maybe,
    eta: Eta,
    hs_local: count.describe("pack files now in the local spool"),
    shards: z.array(Shard),
    tokens: z.object({
      done: count.describe("in committed packs"),
      uploaded: count.describe("uploaded, not yet verified"),
      spooled: count.describe("in ready/"),
      in_engine: count,
      total: count,
      rate: amount.describe("tokens/s"),
    }),
    batches: z.object({ committed: count, total: count, in_flight: count }),
    bytes: z.object({ produced: count, uploaded: count, verified: count, total: count }),
    skipped: count,
    skipped_rows: z
      .array(z.object({ row: count, reason: z.string() }))
      .describe("200 at most: the newest skipped at run time, and some of those that the plan leaves out"),
    failed: count,
    last_commit_at: time.nullable(),
    flops_per_token: maybe
      .default(null)
      .describe("of a forward up to the last tap, at the length of what was computed lately"),
  }),
  engines: z.array(EngineStatus),
  stages: z.array(StageStatus),
  bottleneck: Bottleneck,
  engine_seconds_lost: maybe.describe("engine seconds spent waiting in this session, loading not counted"),
  spool: z.object({
    directory: z.string(),
    bytes: count,
    budget_bytes: count,
    files: count,
    disk_free_bytes: maybe,
    volatile: z.boolean().describe("on tmpfs: gone with the machine's power"),
    quarantined: count,
  }),
  s3: z.object({
    inflight: count,
    limit: count,
    mb_per_s: amount,
    p50_ms: maybe,
    p95_ms: maybe,
    retries: count,
    throttled: count,
    lost_responses: count,
    publish_mode: z.enum(["create-only", "overwrite"]).nullable(),
    verify_mode: z.enum(["checksum", "etag", "readback"]).nullable(),
    verify_failures: count,
    notes: z.array(z.string()),
  }),
  money: z.object({ currency: z.string(), per_hour: amount, so_far: amount, to_go: maybe }).nullable(),
  gate: z.object({
    state: z.enum(["not-run", "running", "passed", "failed", "skipped"]),
    report: z.string().nullable(),
  }),
  training: z.null(),
  alerts: z.array(Alert),
  events_tail: z.array(RunEvent),
});

export type StatusDocument = z.infer<typeof StatusDocument>;
export type RunEvent = z.infer<typeof RunEvent>;
export type EngineStatus = z.infer<typeof EngineStatus>;
export type StageStatus = z.infer<typeof StageStatus>;
export type Bottleneck = z.infer<typeof Bottleneck>;

/** One line of the history that charts are drawn from; a sample each second, thinned as it ages. */
export interface HistoryPoint {
  /** Unix seconds. */
  t: number;
  tokens_per_s: number | null;
  produced_mb_s: number | null;
  uploaded_mb_s: number | null;
  spool_bytes: number | null;
  s3_p50_ms: number | null;
  s3_p95_ms: number | null;
  s3_errors_per_s: number | null;
  inflight: number | null;
  limit: number | null;
  gpu_util: number | null;
}

/** What the monitor reads; it never steers. */
export interface StatusSource {
  /** The present document; cheap enough to ask every second. */
  snapshot(): StatusDocument;
  /** Counters for /metrics that the document does not hold. */
  counters(): RunCounters;
}

export interface RunCounters {
  s3Requests: {
    op: "put" | "head" | "get" | "list" | "delete";
    outcome: "ok" | "exists" | "retried" | "failed";
    count: number;
  }[];
  s3Retries: { reason: string; count: number }[];
  /** Cumulative counts at or below each bound, as Prometheus has them. */
  s3Seconds: { boundsS: number[]; counts: number[]; sumS: number; count: number };
  /** Finished by each engine; `committed`: batches of these that the store has confirmed. */
  tokensByShard: { shard: number; tokens: number; samples: number; batches: number; committed: number }[];
}
