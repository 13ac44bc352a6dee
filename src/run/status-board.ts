import type { LogEvent } from "../base/log.ts";
import { type ForwardCost, flopsPerToken } from "../model/forward-cost.ts";
import type { Spool } from "../spool/spool.ts";
import type { Uploader } from "../spool/uploader.ts";
import { engineSecondsLost } from "./bottleneck.ts";
import { EtaLog, estimateEta } from "./eta.ts";
import type { Part } from "./lease.ts";
import { type BoardSources, Pipeline } from "./pipeline.ts";
import { Rate } from "./rate.ts";
import { ShardTally } from "./shard-tally.ts";
import { judgeState, type StateFacts } from "./state.ts";
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
const SKIPPED_TAIL = 200;
const RATE_WINDOW_S = 60;

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
  #eta: EtaLog | null = null;
  #judgedState = "starting";
  #stateSince: string;
  #phase = "starting";
  #facetPhase: StateFacts["phase"] = "planning";
  #ending: StateFacts["ending"] = null;
  #endingReason: string | null = null;
  #exitCode: number | null = null;
  #stopping = false;
  #blocked: StateFacts["blocked"] = null;
  #planSkips = 0;
  #produced = 0;
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
    this.#stateSince = this.#startedAt;
    const rate = () => new Rate(RATE_WINDOW_S, clock.nowMs);
    this.#rates = { samples: rate(), tokens: rate() };
    this.#shards = new ShardTally(RATE_WINDOW_S, clock.nowMs);
  }

  phase(phase: StateFacts["phase"], words: string): void {
    this.#facetPhase = phase;
    this.#phase = words;
  }

  /** The run is known and counted; from here on the document shows what the store holds. */
  opened(run: { id: string; tally: Tally; planSkips: number; cost: ForwardCost | null }): void {
    this.#runId = run.id;
    this.#tally = run.tally;
    this.#planSkips = run.planSkips;
    this.#cost = run.cost;
  }

  attach(sources: BoardSources): void {
    this.#sources = sources;
    this.#pipeline = new Pipeline(sources, this.#tally!, this.#nowMs);
    this.#eta = new EtaLog(this.#nowMs() / 1000);
  }

  /** `seconds`: as the engine told. */
  computed(shard: number, amount: Amount, seconds: { forward: number; write: number }): void {
    this.#shards.finished(shard, amount, this.#iso());
    this.#produced += amount.bytes;
    this.#pipeline?.rates.produced.add(amount.bytes);
    this.#pipeline?.engineWrote(seconds.write);
    const compute = this.#sources?.fleet()?.stage;
    const blockedS = compute ? compute.seconds().blocked / Math.max(1, compute.slots) : 0;
    this.#eta?.batchComputed(this.#nowMs() / 1000, amount, blockedS);
  }

  uploaded(bytes: number): void {
    this.#pipeline?.rates.uploaded.add(bytes);
  }

  committed(amount: Amount): void {
    this.#lastCommitMs = this.#nowMs();
    this.#lastCommitAt = this.#iso();
    this.#rates.samples.add(amount.samples);
    this.#rates.tokens.add(amount.tokens);
    this.#pipeline?.rates.verified.add(amount.bytes);
    const stats = this.#sources?.uploader.stats();
    const starvedS = stats ? stats.stages.upload.starved / Math.max(1, stats.limit) : 0;
    this.#eta?.packVerified(this.#nowMs() / 1000, amount.bytes, starvedS);
  }

  skipped(rows: readonly { row: number; reason: string }[]): void {
    for (const { row, reason } of rows) this.#skippedRows.set(row, reason);
  }

  get skippedCount(): number {
    return this.#planSkips + this.#skippedRows.size;
  }

  blocked(blocked: StateFacts["blocked"]): void {
    this.#blocked = blocked;
  }

  stopping(): void {
    this.#stopping = true;
  }

  ended(ending: NonNullable<StateFacts["ending"]>, reason: string | null, exitCode: number): void {
    this.#ending = ending;
    this.#endingReason = reason;
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
    const eta = this.#estimate();
    const judged = judgeState(this.#stateFacts(engines, usage, stats));
    if (judged.state !== this.#judgedState) {
      this.#judgedState = judged.state;
      this.#stateSince = at;
    }
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
        state: judged.state,
        phase: this.#phase,
        state_since: this.#stateSince,
        reason: judged.reason,
        action: judged.action,
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
        skipped_rows: [...this.#skippedRows].slice(-SKIPPED_TAIL).map(([row, reason]) => ({ row, reason })),
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
      alerts: this.#alerts(judged),
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
    this.#pipeline?.look();
  }

  #verdict(engines: number): Bottleneck {
    if (this.#pipeline && !this.#ending)
      return this.#pipeline.verdict({ address: this.#facts.address, engines });
    const advice = this.#ending ? "The run has ended." : "Nothing is being worked on yet.";
    return { stage: null, cause: "none", confidence: 1, advice };
  }

  #engines(): EngineStatus[] {
    const lanes = this.#sources?.fleet()?.status() ?? [];
    return lanes.map(({ samples_done, batches_done, ...lane }) => ({
      ...lane,
      last_commit_at: this.#shards.of(lane.shard).lastAt,
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

  /** Batches that the engines hold at once. */
  #slots(): number {
    return Math.max(1, this.#tally?.at.engine.batches ?? 0);
  }

  #estimate(): StatusDocument["extraction"]["eta"] {
    const unknown = { p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason: this.#phase };
    if (!this.#eta || !this.#tally || !this.#sources) return unknown;
    return estimateEta({
      nowS: this.#nowMs() / 1000,
      nowMs: this.#wallMs(),
      log: this.#eta,
      toCompute: this.#tally.toCompute(),
      bytesToVerify: this.#tally.total.bytes - this.#tally.committed.bytes,
      slots: this.#slots(),
    });
  }

  #stateFacts(
    engines: readonly EngineStatus[],
    usage: ReturnType<Spool["usage"]> | null,
    stats: ReturnType<Uploader["stats"]> | null,
  ): StateFacts {
    const requests = stats?.requests.reduce((sum, { count }) => sum + count, 0) ?? 0;
    const samplesPerS = this.#rates.samples.perSecond();
    const commitsPerS =
      samplesPerS > 0 && this.#tally
        ? (samplesPerS * this.#tally.total.batches) / this.#tally.total.samples
        : 0;
    return {
      phase: this.#facetPhase,
      ending: this.#ending,
      endingReason: this.#endingReason,
      stopping: this.#stopping,
      skipped: this.skippedCount,
      blocked: this.#blocked,
      sinceCommitS: this.#lastCommitMs === null ? null : (this.#nowMs() - this.#lastCommitMs) / 1000,
      expectedCommitS: commitsPerS > 0 ? 1 / commitsPerS : this.#lastCommitMs === null ? null : 0,
      retryShare: requests >= 100 && stats ? stats.retries / requests : null,
      enginesDown: engines.filter(({ state }) => state === "restarting" || state === "failed").length,
      engines: engines.length,
      spoolShare: usage ? usage.bytes / usage.budgetBytes : 0,
      weakerVerify:
        this.#sources?.traits.publish === "overwrite"
          ? "the store ignores create-only: one writer only"
          : null,
    };
  }

  #alerts(judged: ReturnType<typeof judgeState>): StatusDocument["alerts"] {
    const alerts: StatusDocument["alerts"] = [];
    if (judged.state === "blocked" || judged.state === "failed") {
      alerts.push({ level: "error", text: judged.reason ?? judged.state, action: judged.action });
    }
    if (judged.state === "stalled" || judged.state === "degraded") {
      alerts.push({ level: "warn", text: judged.reason ?? judged.state, action: judged.action });
    }
    if (this.#sources?.spool.volatile) {
      alerts.push({
        level: "warn",
        text: "the spool is on tmpfs: what is not uploaded goes with the power",
        action: null,
      });
    }
    return alerts;
  }

  #iso(): string {
    return new Date(this.#wallMs()).toISOString();
  }
}
