import type { LogEvent } from "../base/log.ts";
import { type ForwardCost, flopsPerToken } from "../model/forward-cost.ts";
import type { SpoolUsage } from "../spool/spool.ts";
import type { UploaderStats } from "../spool/uploader.ts";
import { type BoardSources, Pipeline } from "./pipeline.ts";
import { Rate } from "./rate.ts";
import { RecentShare } from "./recent-share.ts";
import { type Health, RunCourse } from "./run-course.ts";
import { RunEta } from "./run-eta.ts";
import { ShardTally } from "./shard-tally.ts";
import type { StateFacts } from "./state.ts";
import type { Bottleneck, EngineStatus, RunCounters, StatusDocument, StatusSource } from "./status.ts";
import { type BoardFacts, statusDocument } from "./status-document.ts";
import type { Amount, Tally } from "./tally.ts";

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
  #facts: BoardFacts;
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
  #engineChange: string | null = null;
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

  /** See `engineChange` of record.ts. */
  engineChange(change: string | null): void {
    this.#engineChange = change;
  }

  /** Once the engine is known. */
  resumeCommand(resumeCommand: string): void {
    this.#facts = { ...this.#facts, resumeCommand };
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
    const sources = this.#sources;
    const usage = sources?.spool.usage() ?? null;
    const stats = sources?.uploader.stats() ?? null;
    const engines = this.#engines();
    const at = this.#iso();
    const course = this.#course.judge(this.#health(engines, usage, stats), this.#enginesAt(engines), at);
    const document = statusDocument({
      facts: this.#facts,
      at,
      startedAt: this.#startedAt,
      elapsedS: (this.#wallMs() - Date.parse(this.#startedAt)) / 1000,
      pageUrl: this.#pageUrl,
      runId: this.#runId,
      course,
      exitCode: this.#exitCode,
      tally: this.#tally,
      shards: this.#shards,
      rates: {
        samples: this.#rates.samples.perSecond(),
        tokens: this.#rates.tokens.perSecond(),
        uploadedBytes: this.#pipeline?.rates.uploaded.perSecond() ?? 0,
      },
      eta: this.#estimate(course.phase),
      producedBytes: this.#produced,
      skipped: this.skippedCount,
      skippedTail: this.#skippedTail(),
      lastCommitAt: this.#lastCommitAt,
      flopsPerToken: this.#flopsPerToken(),
      engines,
      stages: this.#pipeline?.stages() ?? [],
      bottleneck: this.#verdict(engines.length),
      usage,
      stats,
      traits: sources?.traits ?? null,
      gate: this.#gate,
      engineChange: this.#engineChange,
      events: [...this.#events],
    });
    return this.#withGpus(document);
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

  #health(engines: readonly EngineStatus[], usage: SpoolUsage | null, stats: UploaderStats | null): Health {
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
