import type { LogEvent } from "../base/log.ts";
import { type ForwardCost, flopsPerToken } from "../model/forward-cost.ts";
import type { Spool } from "../spool/spool.ts";
import type { Uploader } from "../spool/uploader.ts";
import { engineSecondsLost } from "./bottleneck.ts";
import type { Part } from "./lease.ts";
import { type BoardSources, Pipeline } from "./pipeline.ts";
import { Rate } from "./rate.ts";
import { RecentShare } from "./recent-share.ts";
import { type Health, RunCourse } from "./run-course.ts";
import { RunEta } from "./run-eta.ts";
import { ShardTally } from "./shard-tally.ts";
import { alertsOf, type StateFacts } from "./state.ts";
import type { Bottleneck, EngineStatus, RunCounters, StatusDocument, StatusSource } from "./status.ts";
import type { Amount, Tally } from "./tally.ts";

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

const EVENTS_TAIL = 100;
export const SKIPPED_TAIL = 200;
const RATE_WINDOW_S = 60;

/** Rows that the plan leaves out: all are counted, a few named. */
export interface PlanSkips {
  count: number;
  rows: { row: number; reason: string }[];
}

/** Gathers what happened into the one status document; asked by page, terminal, API and heartbeat alike. */
export class StatusBoard implements StatusSource {
  readonly #facts: BoardFacts;
  readonly #nowMs: () => number;
  readonly #wallMs: () => number;
  readonly #withGpus: (document: StatusDocument) => StatusDocument;
  readonly #startedAt: string;
  readonly #events: StatusDocument["events_tail"] = [];
  /** Rows skipped at run time: one that is done again may be skipped again. */
  readonly #skippedRows = new Map<number, string>();
  readonly #rates: Record<"samples" | "tokens", Rate>;
  readonly #shards: ShardTally;
  #runId: string | null = null;
  #tally: Tally | null = null;
  #cost: ForwardCost | null = null;
  #sources: BoardSources | null = null;
  #pipeline: Pipeline | null = null;
  #eta: RunEta | null = null;
  readonly #course: RunCourse;
  readonly #retries = new RecentShare();
  #exitCode: number | null = null;
  #planSkips: PlanSkips = { count: 0, rows: [] };
  #produced = 0;
  /** When the first batch could be handed out. */
  #beganMs: number | null = null;
  #commits = 0;
  #lastCommitMs: number | null = null;
  #lastCommitAt: string | null = null;
  #pageUrl: string | null = null;
  #gate: StatusDocument["gate"] = { state: "not-run", report: null };

  /** `withGpus` puts beside the engines what only the monitor knows of their cards. */
  constructor(
    facts: BoardFacts,
    clock: { nowMs: () => number; wallMs: () => number },
    withGpus: (document: StatusDocument) => StatusDocument = (document) => document,
  ) {
    this.#facts = facts;
    this.#nowMs = clock.nowMs;
    this.#wallMs = clock.wallMs;
    this.#withGpus = withGpus;
    this.#startedAt = this.#iso();
    this.#course = new RunCourse(this.#startedAt);
    const rate = () => new Rate(RATE_WINDOW_S, clock.nowMs);
    this.#rates = { samples: rate(), tokens: rate() };
    this.#shards = new ShardTally(RATE_WINDOW_S, clock.nowMs);
  }

  /** `words`: what is being done; `detail`: how far it is. */
  phase(phase: StateFacts["phase"], words: string, detail: string | null = null): void {
    this.#course.phase(phase, words, detail);
    if (this.#beganMs !== null || (phase !== "extracting" && phase !== "draining")) return;
    this.#beganMs = this.#nowMs();
    for (const rate of Object.values(this.#rates)) rate.add(0);
    const [sources, tally, cost] = [this.#sources, this.#tally, this.#cost];
    if (sources && tally) this.#eta = new RunEta(this.#nowMs, { sources, tally, cost });
  }

  /** The run is known and counted; from here on the document shows what the store holds. */
  opened(run: { id: string; tally: Tally; planSkips: PlanSkips; cost: ForwardCost | null }): void {
    this.#runId = run.id;
    this.#tally = run.tally;
    this.#planSkips = run.planSkips;
    this.#cost = run.cost;
  }

  attach(sources: BoardSources): void {
    this.#sources = sources;
    this.#pipeline = new Pipeline(sources, this.#tally!, this.#nowMs);
  }

  /** An engine finished a batch; `seconds`: as it told. */
  computed(
    { shard, batch, seconds }: { shard: number; batch: number; seconds: { forward: number; write: number } },
    amount: Amount,
  ): void {
    this.#course.warm();
    this.#shards.finished(shard, batch, amount);
    this.#produced += amount.bytes;
    this.#pipeline?.rates.produced.add(amount.bytes);
    this.#pipeline?.engineWrote(seconds.write);
    this.#eta?.computed(amount);
  }

  uploaded(bytes: number): void {
    this.#pipeline?.rates.uploaded.add(bytes);
  }

  committed(batch: number, amount: Amount): void {
    this.#course.warm();
    this.#shards.committed(batch, this.#iso());
    this.#commits += 1;
    this.#lastCommitMs = this.#nowMs();
    this.#lastCommitAt = this.#iso();
    this.#rates.samples.add(amount.samples);
    this.#rates.tokens.add(amount.tokens);
    this.#pipeline?.rates.verified.add(amount.bytes);
    this.#eta?.verified(amount.bytes);
  }

  skipped(rows: readonly { row: number; reason: string }[]): void {
    for (const { row, reason } of rows) this.#skippedRows.set(row, reason);
  }

  get skippedCount(): number {
    return this.#planSkips.count + this.#skippedRows.size;
  }

  #skippedTail(): PlanSkips["rows"] {
    const atRunTime = [...this.#skippedRows].map(([row, reason]) => ({ row, reason }));
    return [...this.#planSkips.rows, ...atRunTime].slice(-SKIPPED_TAIL);
  }

  blocked(blocked: StateFacts["blocked"]): void {
    this.#course.blocked(blocked);
  }

  stopping(): void {
    this.#course.stopping();
  }

  ended(ending: NonNullable<StateFacts["ending"]>, reason: string | null, exitCode: number): void {
    this.#course.ended(ending, reason);
    this.#exitCode = exitCode;
  }

  gate(gate: StatusDocument["gate"]): void {
    this.#gate = gate;
  }

  pageUrl(url: string): void {
    this.#pageUrl = url;
  }

  /** A sink of the run's log. */
  event({ at, level, event, ...fields }: LogEvent): void {
    if (level === "debug") return;
    this.#events.unshift({ at, level, event, fields });
    this.#events.length = Math.min(this.#events.length, EVENTS_TAIL);
  }

  snapshot(): StatusDocument {
    const facts = this.#facts;
    const sources = this.#sources;
    const tally = this.#tally;
    const usage = sources?.spool.usage() ?? null;
    const stats = sources?.uploader.stats() ?? null;
    const engines = this.#engines();
    const stages = this.#pipeline?.stages() ?? [];
    const at = this.#iso();
    const course = this.#course.judge(this.#health(engines, usage, stats), this.#enginesAt(engines), at);
    const eta = this.#estimate(course.phase);
    const elapsedH = (this.#wallMs() - Date.parse(this.#startedAt)) / 3_600_000;
    return this.#withGpus({
      schema_version: 1,
      app_version: facts.appVersion,
      generated_at: at,
      heartbeat_at: at,
      heartbeat_interval_s: facts.heartbeatIntervalS,
      run: {
        id: this.#runId?.slice(0, 16) ?? "",
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
        started_at: this.#startedAt,
        resumed_from: tally && tally.resumedFrom.batches > 0 ? tally.resumedFrom : null,
        page_url: this.#pageUrl,
        run_directory: facts.runDirectory,
        resume_command: facts.resumeCommand,
        exit_code: this.#exitCode,
        settings: facts.settings,
      },
      extraction: {
        total_processed: tally?.committed.samples ?? 0,
        total: tally?.total.samples ?? 0,
        agg_rate: this.#rates.samples.perSecond(),
        eta_hours: eta.p50_s === null ? null : eta.p50_s / 3600,
        eta,
        hs_local: usage?.files ?? 0,
        shards: engines.map(({ shard }) => {
          const work = this.#shards.of(shard);
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
          rate: this.#rates.tokens.perSecond(),
        },
        batches: {
          committed: tally?.committed.batches ?? 0,
          total: tally?.total.batches ?? 0,
          in_flight: tally ? tally.at.engine.batches + tally.at.ready.batches + tally.at.uploaded.batches : 0,
        },
        bytes: {
          produced: this.#produced,
          uploaded: stats?.uploadedBytes ?? 0,
          verified: tally?.committed.bytes ?? 0,
          total: tally?.total.bytes ?? 0,
        },
        skipped: this.skippedCount,
        skipped_rows: this.#skippedTail(),
        failed: 0,
        last_commit_at: this.#lastCommitAt,
        flops_per_token: this.#flopsPerToken(),
      },
      engines,
      stages,
      bottleneck: this.#verdict(engines.length),
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
      s3: {
        inflight: stats?.inflight ?? 0,
        limit: stats?.limit ?? 0,
        mb_per_s: (this.#pipeline?.rates.uploaded.perSecond() ?? 0) / 1e6,
        p50_ms: stats?.putP50Ms ?? null,
        p95_ms: stats?.putP95Ms ?? null,
        retries: stats?.retries ?? 0,
        throttled: stats?.throttled ?? 0,
        lost_responses: stats?.lostResponses ?? 0,
        publish_mode: sources?.traits.publish ?? null,
        verify_mode: sources?.traits.verify ?? null,
        verify_failures: stats?.verifyFailures ?? 0,
        notes: sources?.traits.notes ?? [],
      },
      money: facts.price && {
        currency: facts.price.currency,
        per_hour: facts.price.perHour,
        so_far: elapsedH * facts.price.perHour,
        to_go: eta.p50_s === null ? null : (eta.p50_s / 3600) * facts.price.perHour,
      },
      gate: this.#gate,
      training: null,
      alerts: alertsOf(course, { volatile: usage?.volatile ?? false }),
      events_tail: [...this.#events],
    });
  }

  counters(): RunCounters {
    const stats = this.#sources?.uploader.stats();
    return {
      s3Requests: stats?.requests ?? [],
      s3Retries: stats?.retryReasons ?? [],
      s3Seconds: stats?.requestSeconds ?? { boundsS: [], counts: [], sumS: 0, count: 0 },
      tokensByShard: this.#shards.counts(),
    };
  }

  /** Takes a look at the pipeline for the verdict; once a second. */
  look(): void {
    if (this.#beganMs === null) return;
    this.#pipeline?.look();
    const stats = this.#sources?.uploader.stats();
    if (!stats) return;
    const all = stats.requests.reduce((sum, { count }) => sum + count, 0);
    this.#retries.look(this.#nowMs() / 1000, { all, part: stats.retries });
  }

  #verdict(engines: number): Bottleneck {
    if (this.#course.isOver)
      return { stage: null, cause: "none", confidence: 1, advice: "The run has ended." };
    if (this.#pipeline && this.#beganMs !== null)
      return this.#pipeline.verdict({ address: this.#facts.address, engines });
    return { stage: null, cause: "unknown", confidence: 0, advice: "Nothing is being worked on yet." };
  }

  #engines(): EngineStatus[] {
    const lanes = this.#sources?.fleet()?.status() ?? [];
    return lanes.map(({ samples_done, batches_done, ...lane }) => ({
      ...lane,
      last_commit_at: this.#shards.of(lane.shard).lastCommitAt,
      // See `withGpus`.
      flops_share: null,
      gpu: null,
    }));
  }

  #flopsPerToken(): number | null {
    if (!this.#cost || !this.#tally) return null;
    const { tokens, tokensSquared } = this.#tally.total;
    const meanTokens = this.#shards.meanTokens() ?? (tokens > 0 ? tokensSquared / tokens : null);
    return meanTokens === null ? null : flopsPerToken(this.#cost, meanTokens);
  }

  #estimate(phase: string): StatusDocument["extraction"]["eta"] {
    const unknown = { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason: phase };
    return this.#eta?.estimate(this.#wallMs()) ?? unknown;
  }

  #health(
    engines: readonly EngineStatus[],
    usage: ReturnType<Spool["usage"]> | null,
    stats: ReturnType<Uploader["stats"]> | null,
  ): Health {
    const sinceMs = this.#lastCommitMs;
    return {
      skipped: this.skippedCount,
      sinceCommitS: sinceMs === null ? null : (this.#nowMs() - sinceMs) / 1000,
      expectedCommitS:
        sinceMs === null ? null : (sinceMs - (this.#beganMs ?? sinceMs)) / 1000 / this.#commits,
      retryShare: stats ? this.#retries.share() : null,
      enginesDown: engines.filter(({ state }) => state === "restarting" || state === "failed").length,
      engines: engines.length,
      spoolShare: usage ? usage.bytes / usage.budgetBytes : 0,
      weakerVerify:
        this.#sources?.traits.publish === "overwrite"
          ? "the store ignores create-only: one writer only"
          : null,
    };
  }

  /** What the engines are at before the first batch comes out of one; null where there is none. */
  #enginesAt(engines: readonly EngineStatus[]): string | null {
    const { batches, tokens } = this.#tally?.at.engine ?? { batches: 0, tokens: 0 };
    if (batches > 0) return `${batches} in the engines, ${tokens.toLocaleString("en-US")} tokens`;
    const first = engines.find(({ state }) => state !== "running" && state !== "idle");
    if (!first) return null;
    const { name, state, last_error } = first;
    return last_error === null ? `${name} is ${state}` : `${name} is ${state} after an error: ${last_error}`;
  }

  #iso(): string {
    return new Date(this.#wallMs()).toISOString();
  }
}
