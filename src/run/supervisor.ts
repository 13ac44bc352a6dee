import { join, resolve } from "node:path";
import { describeError, EXIT, type ExitCode, RunError, stillSafe } from "../base/errors.ts";
import { Stage } from "../base/stage.ts";
import type { Engine } from "../engine/engine.ts";
import type { FleetEngine } from "../engine/lane.ts";
import type { Loaded } from "../engine/protocol.ts";
import { packLayout } from "../pack/layout.ts";
import { batchCount, batchOf, planTotals } from "../plan/plan.ts";
import { recoverReady } from "../spool/recover.ts";
import type { Spool } from "../spool/spool.ts";
import { Uploader, type UploaderEvent } from "../spool/uploader.ts";
import { packKey } from "../store/keys.ts";
import { probeStore } from "../store/probe.ts";
import { withRetries } from "../store/retry.ts";
import type { OpenedStore, StoreTraits } from "../store/store.ts";
import { BatchLoop } from "./batch-loop.ts";
import { BlockedWatch } from "./blocked-watch.ts";
import { assertGate, gateSamples, runGate } from "./gate.ts";
import { HEARTBEAT_INTERVAL_S, Heartbeat } from "./heartbeat.ts";
import { publishIndex } from "./index-file.ts";
import { type Closer, listRun, type Opened, openRun, startPatience } from "./open-run.ts";
import type { EngineSetup, ExtractOptions, ExtractTools } from "./options.ts";
import type { PreparedRun } from "./prepare.ts";
import { publishInputs } from "./publish-inputs.ts";
import { assertSameIdentity, type RunRecord } from "./record.ts";
import { remainingBatches } from "./remaining.ts";
import type { RunState } from "./status.ts";
import type { Tally } from "./tally.ts";

/** Small range requests at a time when the index is made. */
const INDEX_PARALLEL = 32;

export interface Ending {
  exit: ExitCode;
  reason: string | null;
}

/**
 * The life of one supervisor: opens everything in an order in which each refusal leaves the store as it was, lets
 * the batch loop run, and lets everything go again in the opposite order, whatever happens.
 */
export class Supervisor {
  readonly #options: ExtractOptions;
  readonly #tools: ExtractTools;
  /** Aborted with the error that ends the run. */
  readonly #failed = new AbortController();
  readonly #closers: Closer[] = [];
  #heartbeat: Heartbeat | null = null;
  #loop: BatchLoop | null = null;
  #spool: Spool | null = null;
  readonly #blocked: BlockedWatch;
  /** When a stop was asked for; monotonic. */
  #stopAtMs: number | null = null;

  constructor(options: ExtractOptions, tools: ExtractTools) {
    this.#options = options;
    this.#tools = tools;
    this.#blocked = new BlockedWatch({
      board: tools.board,
      address: options.address,
      blockedMsMax: options.maxBlockedMs,
      giveUp: (error) => this.#failed.abort(error),
    });
  }

  /** Once a second. */
  look(): void {
    if (this.#spool) this.#blocked.disk(this.#spool.usage().paused);
  }

  /** Once a second, with the state as everybody is shown it. */
  shown(state: RunState): void {
    this.#heartbeat?.look(state);
  }

  async run(): Promise<Ending> {
    const { board, stop } = this.#tools;
    const onStop = () => {
      this.#stopAtMs = this.#tools.nowMs();
      board.stopping();
    };
    stop.addEventListener("abort", onStop, { once: true });
    try {
      const opened = await openRun(this.#options, this.#tools, this.#closers).catch((error: unknown) => {
        throw stillSafe(error, "nothing was written to the store or the spool");
      });
      this.#tools.onAccepted?.();
      const ending = await this.#extract(opened);
      board.ended(ending.reason === null ? "done" : "stopped", ending.reason, ending.exit);
      return ending;
    } catch (error) {
      // A graceful stop during the start ends whatever was waited for.
      if (stop.aborted && !this.#failed.signal.aborted && error === stop.reason) {
        const ending = this.#stopped("stopped before the first batch");
        board.ended("stopped", ending.reason, ending.exit);
        return ending;
      }
      board.ended("failed", describeError(error), error instanceof RunError ? error.exit : EXIT.bug);
      throw error;
    } finally {
      // Who comes next on this part reads here that it ended, and need not wait.
      await this.#heartbeat?.end();
      await this.#letGo();
    }
  }

  async #extract(opened: Opened): Promise<Ending> {
    const { store, prepared, engines, runId, spool, holdings, tally, skippedBefore } = opened;
    const { options, tools } = { options: this.#options, tools: this.#tools };
    const { board, log, stop } = tools;
    const { plan } = prepared;
    this.#spool = spool;
    const found = spool.usage().files;
    if (found > 0)
      board.phase("planning", "checking the packs that were left in the spool", `${found} packs`);
    const recovered = await recoverReady({
      spool,
      identity: runId,
      layoutOf: (batch) =>
        batch < batchCount(plan) ? packLayout(batchOf(plan, batch), plan.options.shape) : null,
      log,
    });
    const inReady = new Set(recovered.good.map(({ pack }) => pack.batch));
    const remaining = remainingBatches(holdings, options.part).filter((batch) => !inReady.has(batch));
    if (remaining.length === 0 && inReady.size === 0) {
      await this.#index(opened);
      return this.#done();
    }

    board.phase("planning", "probing the store");
    const traits = await probeStore(store, startPatience(this.#tools));
    this.#assertOneWriter(traits);
    for (const note of traits.notes) log.warn("store.weaker", { note });
    // Such a store keeps no second writer away: others must see us from now on, not once the model is loaded.
    if (traits.publish === "overwrite") this.#beat(store);

    const packStage = new Stage("pack", tools.nowMs);
    const uploader = new Uploader({
      spool,
      spec: options.spec,
      traits,
      uploads: options.uploads,
      inflightBytes: options.inflightBytes,
      log,
      nowMs: tools.nowMs,
      random: tools.random,
      onEvent: (event) => this.#onUpload(event, tally),
    });
    this.#closers.push(() => uploader.close());
    const loop = new BatchLoop({
      identity: runId,
      prepared,
      engines: this.#fleetEngines(prepared, engines),
      limits: options.engineLimits,
      store,
      spool,
      uploader,
      board,
      tally,
      remaining,
      packStage,
      skipsMax: Math.max(0, Math.floor(options.maxSkips * plan.rows.length) - skippedBefore),
      runDirectory: options.runDirectory,
      log,
      random: tools.random,
      nowMs: tools.nowMs,
      prepare: async (engine, loaded) => {
        await this.#gate(engine, loaded, prepared);
        if (!prepared.record) {
          board.phase("loading", "storing plan and inputs");
          await this.#publish(opened, traits);
        }
        this.#beat(store);
      },
    });
    this.#loop = loop;
    board.attach({ spool, uploader, traits, packStage, fleet: () => loop.fleet });
    for (const { pack, layout } of recovered.good) {
      tally.move(pack.batch, "ready");
      uploader.enqueue(pack, { identity: runId, layout }, { lookFirst: true });
    }
    tools.onLive?.({ setUploads: (limits) => uploader.setLimits(limits) });

    const halt = AbortSignal.any([stop, this.#failed.signal]);
    for (let round = 1; loop.hasWork && !halt.aborted; round += 1) {
      if (round === 1) board.phase("loading", "loading the model");
      else board.phase("extracting", "computing again what was spoiled");
      await loop.round(halt, this.#options.stopDeadlineMs);
      board.phase("draining", "uploading what is left");
      // A pack whose file was spoiled comes back meanwhile: then there is another round.
      await uploader.idle(halt).catch(() => {});
    }
    if (remaining.length === 0) {
      this.#beat(store);
      board.phase("draining", "uploading what was left in the spool");
      await uploader.idle(halt).catch(() => {});
    }
    this.#failed.signal.throwIfAborted();
    if (stop.aborted) return this.#flush(uploader);
    this.#assertNoneStuck(uploader);
    await this.#index(opened);
    return this.#done();
  }

  async #gate(engine: Engine, loaded: Loaded, { plan, rows }: PreparedRun): Promise<void> {
    const { board, log } = this.#tools;
    if (!this.#options.gate) {
      board.gate({ state: "skipped", report: null });
      return;
    }
    board.phase("gate", "checking the engine's states");
    board.gate({ state: "running", report: null });
    const report = await runGate(engine, loaded, gateSamples(plan, rows), {
      shape: plan.options.shape,
      directory: join(this.#options.runDirectory, "scratch"),
      log,
    });
    board.gate({ state: report.state, report: report.text });
    assertGate(report, engine.label);
  }

  #beat(store: OpenedStore): void {
    this.#heartbeat ??= new Heartbeat({
      store,
      part: this.#options.part,
      intervalS: HEARTBEAT_INTERVAL_S,
      document: () => this.#tools.board.snapshot(),
      log: this.#tools.log,
      nowMs: this.#tools.nowMs,
    });
  }

  #fleetEngines(prepared: PreparedRun, engines: EngineSetup): FleetEngine[] {
    const { request } = this.#options;
    const { engine, dtype } = engines.facts;
    // So that an engine can tell what memory its largest forward will take.
    const options = { ...engines.options, longest_tokens: planTotals(prepared.plan).longestTokens };
    return engines.commands.map((command, shard) => ({
      label: `${engine}-${shard}`,
      shard,
      command,
      load: {
        model: resolve(request.modelDirectory),
        dtype,
        device: null,
        taps: prepared.identity.taps,
        options,
      },
    }));
  }

  async #publish({ store, prepared, engines }: Opened, traits: StoreTraits): Promise<RunRecord> {
    const { options, tools } = { options: this.#options, tools: this.#tools };
    const record = await publishInputs(store, prepared, {
      spec: options.spec,
      traits,
      attachments: options.attachments,
      facts: {
        created_at: new Date(tools.wallMs()).toISOString(),
        app_version: options.appVersion,
        host: tools.host,
        model: options.request.modelDirectory,
        architecture: prepared.model.architecture,
        ...engines.facts,
        gate: options.gate,
        dataset: options.request.dataset?.path ?? null,
        start_row: options.request.dataset?.startRow ?? null,
        end_row: options.request.dataset?.endRow ?? null,
        max_tokens: options.request.maxTokens,
        long: options.request.long,
      },
      retry: startPatience(this.#tools),
    });
    assertSameIdentity(prepared.identity, record, store.address);
    return record;
  }

  /** A graceful stop: what is in ready/ leaves for the store until the deadline; the rest waits in the spool. */
  async #flush(uploader: Uploader): Promise<Ending> {
    const { board } = this.#tools;
    board.phase("draining", "flushing the spool");
    // One deadline for the whole stop: what the engines took of it is gone.
    const goneMs = this.#tools.nowMs() - (this.#stopAtMs ?? this.#tools.nowMs());
    const { left } = await uploader.drain({ deadlineMs: Math.max(0, this.#options.stopDeadlineMs - goneMs) });
    return this.#stopped(
      left === 0 ? "stopped; the spool is empty" : `stopped; ${left} packs wait in the spool`,
    );
  }

  #assertNoneStuck(uploader: Uploader): void {
    const { stuck } = uploader.stats();
    if (stuck.length > 0) throw stuckKeys(this.#options.address, stuck);
  }

  /** The index needs every part's packs: with several parts the last to finish finds them all. */
  async #index({ store, prepared, runId, tally }: Opened): Promise<void> {
    const { board, log } = this.#tools;
    const { plan } = prepared;
    board.phase("draining", "writing the index");
    try {
      if (tally.total.batches < batchCount(plan)) {
        const { committedCount } = await listRun(store, plan, startPatience(this.#tools));
        if (committedCount < batchCount(plan)) return;
      }
      await withRetries(
        () => publishIndex(store, { runId, plan }, { parallel: INDEX_PARALLEL }),
        startPatience(this.#tools),
      );
    } catch (error) {
      // Everything is committed and verified; the index can be made again by the same command.
      log.warn("index.failed", { reason: describeError(error) });
    }
  }

  #done(): Ending {
    return { exit: this.#tools.board.skippedCount > 0 ? EXIT.doneWithSkips : EXIT.done, reason: null };
  }

  #stopped(reason: string): Ending {
    return { exit: this.#tools.stopExit(), reason };
  }

  #onUpload(event: UploaderEvent, tally: Tally): void {
    const { board, log } = this.#tools;
    switch (event.kind) {
      case "uploaded":
        tally.move(event.batch, "uploaded");
        board.uploaded(event.bytes);
        return;
      case "committed": {
        const amount = tally.commit(event.batch);
        if (amount) board.committed(event.batch, amount);
        log.info("batch.committed", { batch: event.batch, bytes: event.bytes, how: event.how });
        return;
      }
      case "requeue":
        tally.move(event.batch, null);
        log.warn("batch.requeued", { batch: event.batch, reason: event.reason });
        try {
          this.#loop?.requeue(event.batch, event.reason);
        } catch (error) {
          this.#failed.abort(error);
        }
        return;
      case "blocked":
        this.#blocked.store({ reason: event.reason, action: event.action ?? "see docs/operating.md" });
        return;
      case "down":
        this.#blocked.store({
          reason: `the store does not serve: ${event.reason}`,
          action: "nothing: it is asked again by itself",
        });
        return;
      case "unblocked":
      case "up":
        this.#blocked.store(null);
        return;
      case "retry":
      case "throttled":
        return;
      case "failed":
        this.#failed.abort(event.error);
    }
  }

  /** A store that ignores create-only has one writer: parts on several machines could overwrite one another. */
  #assertOneWriter(traits: StoreTraits): void {
    if (traits.publish === "create-only" || this.#options.part.count === 1) return;
    throw new RunError({
      op: "claim part",
      subject: `${this.#options.address} --part ${this.#options.part.index}/${this.#options.part.count}`,
      message: "this store ignores If-None-Match, so only one machine may write to it",
      safe: "nothing was written",
      hint: "run without --part, or use a store that honours create-only PUTs",
      exit: EXIT.usage,
    });
  }

  async #letGo(): Promise<void> {
    this.#spool = null;
    this.#blocked.close();
    for (const close of this.#closers.reverse()) {
      try {
        await close();
      } catch (error) {
        // How the run ended stands by now, and the rest must be let go too.
        this.#tools.log.warn("close.failed", { reason: describeError(error) });
      }
    }
  }
}

function stuckKeys(address: string, batches: readonly number[]): RunError {
  const shown = batches.slice(0, 5).map((batch) => packKey(batch));
  return new RunError({
    op: "upload packs",
    subject: address,
    message: `${batches.length} keys hold objects that are torn or not of this run: ${shown.join(", ")}`,
    safe: "all other batches are committed; these packs wait in the spool",
    hint: "look at these objects, remove them by hand if they are damaged, and run the same command again",
    exit: EXIT.integrity,
  });
}
