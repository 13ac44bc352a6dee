import type { SpoolUsage } from "../spool/spool.ts";
import type { UploaderStats } from "../spool/uploader.ts";
import type { StoreTraits } from "../store/store.ts";
import { engineSecondsLost } from "./bottleneck.ts";
import type { Part } from "./lease.ts";
import type { Course } from "./run-course.ts";
import type { ShardTally } from "./shard-tally.ts";
import { alertsOf } from "./state.ts";
import type { Bottleneck, EngineStatus, StageStatus, StatusDocument } from "./status.ts";
import type { Tally } from "./tally.ts";

/** What never changes while this process lives. */
export interface BoardFacts {
  appVersion: string;
  address: string;
  name: string;
  part: Part;
  host: string;
  pid: number;
  runDirectory: string;
  spoolDirectory: string;
  spoolBudgetBytes: number;
  resumeCommand: string;
  settings: StatusDocument["run"]["settings"];
  heartbeatIntervalS: number;
  price: { currency: string; perHour: number } | null;
}

/** All that is known at one moment; null: not there yet. */
export interface Moment {
  facts: BoardFacts;
  /** ISO 8601: now, and when this process began. */
  at: string;
  startedAt: string;
  elapsedS: number;
  pageUrl: string | null;
  runId: string | null;
  course: Course;
  exitCode: number | null;
  tally: Tally | null;
  shards: ShardTally;
  /** Samples and tokens committed, and bytes accepted by the store, in a second. */
  rates: { samples: number; tokens: number; uploadedBytes: number };
  eta: StatusDocument["extraction"]["eta"];
  producedBytes: number;
  skipped: number;
  skippedTail: StatusDocument["extraction"]["skipped_rows"];
  lastCommitAt: string | null;
  flopsPerToken: number | null;
  engines: EngineStatus[];
  stages: StageStatus[];
  bottleneck: Bottleneck;
  usage: SpoolUsage | null;
  stats: UploaderStats | null;
  traits: StoreTraits | null;
  gate: StatusDocument["gate"];
  engineChange: string | null;
  /** Newest first. */
  events: StatusDocument["events_tail"];
}

/** The status document of one moment. */
export function statusDocument(moment: Moment): StatusDocument {
  const { facts, at, course, usage, stages } = moment;
  return {
    schema_version: 1,
    app_version: facts.appVersion,
    generated_at: at,
    heartbeat_at: at,
    heartbeat_interval_s: facts.heartbeatIntervalS,
    run: runOf(moment),
    extraction: extractionOf(moment),
    engines: moment.engines,
    stages,
    bottleneck: moment.bottleneck,
    engine_seconds_lost: engineSecondsLost(stages),
    spool: {
      directory: facts.spoolDirectory,
      bytes: usage?.bytes ?? 0,
      budget_bytes: usage?.budgetBytes ?? facts.spoolBudgetBytes,
      files: usage?.files ?? 0,
      disk_free_bytes: usage?.diskFreeBytes ?? null,
      volatile: usage?.volatile ?? false,
      quarantined: usage?.quarantined ?? 0,
    },
    s3: s3Of(moment),
    money: moneyOf(moment),
    gate: moment.gate,
    training: null,
    alerts: alertsOf(course, {
      volatile: usage?.volatile ?? false,
      engineChange: moment.engineChange,
    }),
    events_tail: moment.events,
  };
}

function runOf({ facts, course, tally, ...moment }: Moment): StatusDocument["run"] {
  return {
    id: moment.runId?.slice(0, 16) ?? "",
    name: facts.name,
    address: facts.address,
    part: facts.part,
    state: course.state,
    phase: course.phase,
    state_since: course.since,
    reason: course.reason,
    action: course.action,
    host: facts.host,
    pid: facts.pid,
    started_at: moment.startedAt,
    resumed_from: tally && tally.resumedFrom.batches > 0 ? tally.resumedFrom : null,
    page_url: moment.pageUrl,
    run_directory: facts.runDirectory,
    resume_command: facts.resumeCommand,
    exit_code: moment.exitCode,
    settings: facts.settings,
  };
}

function extractionOf({ tally, eta, rates, ...moment }: Moment): StatusDocument["extraction"] {
  return {
    total_processed: tally?.committed.samples ?? 0,
    total: tally?.total.samples ?? 0,
    agg_rate: rates.samples,
    eta_hours: eta.p50_s === null ? null : eta.p50_s / 3600,
    eta,
    hs_local: moment.usage?.files ?? 0,
    shards: moment.engines.map(({ shard }) => {
      const work = moment.shards.of(shard);
      return {
        shard,
        processed: work.samples,
        total: tally?.total.samples ?? 0,
        rate_per_sec: work.samplesRate.perSecond(),
        batch: work.batches,
        total_batches: tally?.total.batches ?? 0,
      };
    }),
    tokens: {
      done: tally?.committed.tokens ?? 0,
      uploaded: tally?.at.uploaded.tokens ?? 0,
      spooled: tally?.at.ready.tokens ?? 0,
      in_engine: tally?.at.engine.tokens ?? 0,
      total: tally?.total.tokens ?? 0,
      rate: rates.tokens,
    },
    batches: {
      committed: tally?.committed.batches ?? 0,
      total: tally?.total.batches ?? 0,
      in_flight: tally ? tally.at.engine.batches + tally.at.ready.batches + tally.at.uploaded.batches : 0,
    },
    bytes: {
      produced: moment.producedBytes,
      uploaded: moment.stats?.uploadedBytes ?? 0,
      verified: tally?.committed.bytes ?? 0,
      total: tally?.total.bytes ?? 0,
    },
    skipped: moment.skipped,
    skipped_rows: moment.skippedTail,
    failed: 0,
    last_commit_at: moment.lastCommitAt,
    flops_per_token: moment.flopsPerToken,
  };
}

function s3Of({ stats, traits, rates }: Moment): StatusDocument["s3"] {
  return {
    inflight: stats?.inflight ?? 0,
    limit: stats?.limit ?? 0,
    mb_per_s: rates.uploadedBytes / 1e6,
    p50_ms: stats?.putP50Ms ?? null,
    p95_ms: stats?.putP95Ms ?? null,
    retries: stats?.retries ?? 0,
    throttled: stats?.throttled ?? 0,
    lost_responses: stats?.lostResponses ?? 0,
    publish_mode: traits?.publish ?? null,
    verify_mode: traits?.verify ?? null,
    verify_failures: stats?.verifyFailures ?? 0,
    notes: traits?.notes ?? [],
  };
}

function moneyOf({ facts: { price }, elapsedS, eta }: Moment): StatusDocument["money"] {
  if (!price) return null;
  return {
    currency: price.currency,
    per_hour: price.perHour,
    so_far: (elapsedS / 3600) * price.perHour,
    to_go: eta.p50_s === null ? null : (eta.p50_s / 3600) * price.perHour,
  };
}
