import { join } from "node:path";
import { describeError, EXIT, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { Stage } from "../base/stage.ts";
import type { Engine } from "../engine/engine.ts";
import { Fleet } from "../engine/fleet.ts";
import type { FleetEngine } from "../engine/lane.ts";
import type { Loaded, SampleStates } from "../engine/protocol.ts";
import type { EngineLimits } from "../engine/watchdog.ts";
import type { BatchOutcome, Work } from "../engine/work.ts";
import { type PackLayout, packLayout } from "../pack/layout.ts";
import type { PackFacts } from "../pack/metadata.ts";
import type { SampleOutcome } from "../pack/writer.ts";
import { batchOf } from "../plan/plan.ts";
import type { ReadyPack, Reservation } from "../spool/reservation.ts";
import type { Spool } from "../spool/spool.ts";
import type { Uploader } from "../spool/uploader.ts";
import { withRetries } from "../store/retry.ts";
import type { Store } from "../store/store.ts";
import type { PreparedRun } from "./prepare.ts";
import { putSkips } from "./skips.ts";
import type { StatusBoard } from "./status-board.ts";
import { amountOf, type Tally } from "./tally.ts";

export interface BatchLoopOptions {
  /** The run's id, as packs carry it. */
  identity: string;
  prepared: PreparedRun;
  engines: FleetEngine[];
  limits: Partial<EngineLimits>;
  store: Store;
  spool: Spool;
  uploader: Uploader;
  board: StatusBoard;
  tally: Tally;
  /** Batches to compute, in plan order. */
  remaining: number[];
  packStage: Stage;
  /** Rows that may still be skipped. */
  skipsMax: number;
  runDirectory: string;
  log: Log;
  random: () => number;
  nowMs: () => number;
  /** The gate and whatever else must be done once the first engine is up, before any work. */
  prepare: (engine: Engine, loaded: Loaded) => Promise<void>;
}

/** A disk or memory that changes a byte now and then spoils a pack once; what does so every time is broken. */
const SPOILED_MAX = 3;

type Finished = Extract<BatchOutcome, { kind: "states" }>;

/** A batch in an engine's hands: the room that it holds, and the file that it is being written to. */
interface Claimed {
  layout: PackLayout;
  reservation: Reservation;
}

/**
 * The way of a batch through the engines: claim it, reserve its room, make its file, let an engine write the states,
 * finish the pack into ready/, hand it to the uploader. Runs in rounds: one is over when nothing is left to claim, and
 * a batch that comes back later (its file was spoiled) makes another.
 */
export class BatchLoop {
  readonly #options: BatchLoopOptions;
  readonly #queue: number[];
  readonly #claimed = new Map<number, Claimed>();
  readonly #facts: PackFacts;
  /** Who computed the packs that are on their way, and those of a batch that were spoiled. */
  readonly #makers = new Map<number, string>();
  readonly #spoiled = new Map<number, string[]>();
  #fleet: Fleet | null = null;
  #isPrepared = false;
  #hasDispatched = false;
  #packing = 0;
  /** Of the present round. */
  #stop = new AbortController().signal;

  constructor(options: BatchLoopOptions) {
    this.#options = options;
    this.#queue = [...options.remaining].reverse();
    options.packStage.enter("pack", "starved");
    this.#facts = { identity: options.identity, numbering: options.prepared.numbering };
  }

  get hasWork(): boolean {
    return this.#queue.length > 0;
  }

  /** The engines of this round, or of the last; null before the first. */
  get fleet(): Fleet | null {
    return this.#fleet;
  }

  /** A batch whose pack was lost on its way: next in turn. Throws where that happened again and again. */
  requeue(batch: number, reason: string): void {
    const makers = [...(this.#spoiled.get(batch) ?? []), this.#makers.get(batch) ?? "an earlier session"];
    this.#spoiled.set(batch, makers);
    if (makers.length >= SPOILED_MAX) {
      throw new RunError({
        op: "compute a pack",
        subject: `batch ${batch}`,
        message: `its file was spoiled or lost ${makers.length} times (made by ${makers.join(", ")}): ${reason}`,
        safe: "no spoiled pack was stored; committed packs are untouched",
        hint: "the disk or the memory of this machine changes bytes, or the engine's checksums are wrong: the files are in the spool's quarantine/. On another machine the same command continues",
        exit: EXIT.integrity,
      });
    }
    this.#queue.push(batch);
  }

  /**
   * Computes what is in the queue; resolves when it is empty and nothing is in an engine, or after the `stop` signal
   * (what is in the engines is then finished within `graceMs`, or let go). Rejects with what stops the run.
   */
  async round(stop: AbortSignal, graceMs: number): Promise<void> {
    const { prepared, engines, limits, skipsMax, runDirectory, log, random } = this.#options;
    const { taps, hidden } = prepared.plan.options.shape;
    const fleet = new Fleet({
      engines,
      shape: { taps, hidden },
      limits,
      log,
      random,
      stderrDirectory: runDirectory,
      scratchDirectory: join(runDirectory, "scratch"),
      skipsMax,
      before: this.#fleet,
      prepare: (engine, loaded) => this.#prepareOnce(engine, loaded),
      next: (_engine, signal) => this.#next(signal),
      newAttempt: (work) => this.#newAttempt(work),
      done: (outcome) => this.#done(outcome),
    });
    this.#fleet = fleet;
    const stopping: Promise<void>[] = [];
    const onStop = () => void stopping.push(fleet.stop(graceMs));
    if (stop.aborted) return;
    this.#stop = stop;
    stop.addEventListener("abort", onStop, { once: true });
    try {
      await fleet.run();
    } finally {
      stop.removeEventListener("abort", onStop);
      await Promise.all(stopping);
      for (const [batch, { reservation }] of this.#claimed) {
        this.#options.tally.move(batch, null);
        await reservation.drop();
      }
      this.#claimed.clear();
    }
  }

  async #prepareOnce(engine: Engine, loaded: Loaded): Promise<void> {
    if (!this.#isPrepared) await this.#options.prepare(engine, loaded);
    this.#isPrepared = true;
    this.#options.board.phase("extracting", "extracting");
  }

  async #next(signal: AbortSignal): Promise<Work | null> {
    const { prepared, spool, tally, log } = this.#options;
    for (;;) {
      const batch = this.#queue.pop();
      if (batch === undefined) return null;
      const layout = packLayout(batchOf(prepared.plan, batch), prepared.plan.options.shape);
      try {
        const reservation = await spool.reserve(layout.bytes, signal);
        this.#claimed.set(batch, { layout, reservation });
        const file = await this.#makePart(batch, 1, reservation);
        if (file === null) continue;
        tally.move(batch, "engine");
        if (!this.#hasDispatched) log.info("run.first_batch", { batch, samples: layout.samples.length });
        this.#hasDispatched = true;
        return { batch, attempt: 1, file, samples: this.#samplesOf(layout) };
      } catch (error) {
        if (!this.#claimed.has(batch)) this.#queue.push(batch);
        throw error;
      }
    }
  }

  /** null: the disk is full after all; the spool pauses by itself, and the batch waits its turn again. */
  async #makePart(batch: number, attempt: number, reservation: Reservation): Promise<string | null> {
    try {
      return await reservation.createPart(batch, attempt);
    } catch (error) {
      if (!(error instanceof RunError) || error.remedy !== "retry") throw error;
      await this.#giveBack(batch, error.message);
      return null;
    }
  }

  #samplesOf(layout: PackLayout): Work["samples"] {
    const { rows } = this.#options.prepared;
    return layout.samples.map(({ row, tokens, statesByte }) => ({
      row,
      ids: Array.from(rows.ids(row).subarray(0, tokens)),
      offset: statesByte,
    }));
  }

  async #newAttempt(work: Work): Promise<Work> {
    const { reservation } = this.#claim(work.batch);
    await reservation.dropPart();
    const attempt = work.attempt + 1;
    return { ...work, attempt, file: await reservation.createPart(work.batch, attempt) };
  }

  async #done(outcome: BatchOutcome): Promise<void> {
    const { batch } = outcome.work;
    switch (outcome.kind) {
      case "released":
        await this.#giveBack(batch, null);
        return;
      case "no-space":
        await this.#giveBack(batch, `an engine found the disk full: ${outcome.reason}`);
        return;
      case "states":
        await this.#finish(outcome);
    }
  }

  /** The batch goes back into the queue and its room to the spool; `reason`: the disk was full, so nothing is granted. */
  async #giveBack(batch: number, reason: string | null): Promise<void> {
    const { layout, reservation } = this.#claim(batch);
    const { spool, tally, log } = this.#options;
    this.#claimed.delete(batch);
    tally.move(batch, null);
    await reservation.drop();
    this.#queue.push(batch);
    if (reason === null) return;
    log.warn("batch.no_space", { batch, reason });
    // Not waited for: a run that is being stopped must not hang on a disk that stays full. The next reserve() does wait.
    spool.pauseUntilSpace(layout.bytes, reason).catch((error: unknown) => {
      log.error("spool.pause", { reason: describeError(error) });
    });
  }

  async #finish(outcome: Finished): Promise<void> {
    const { batch } = outcome.work;
    const { layout, reservation } = this.#claim(batch);
    const { identity, prepared, uploader, board, tally } = this.#options;
    if (!(await this.#noteSkips(outcome))) return this.#giveBack(batch, null);
    const ready = await this.#pack(layout, reservation, outcome);
    if (!ready) return;
    this.#claimed.delete(batch);
    tally.move(batch, "ready");
    this.#makers.set(batch, outcome.engine);
    board.computed({ ...outcome, batch }, amountOf(prepared.plan, batch));
    board.skipped(outcome.skipped);
    uploader.enqueue(ready, { identity, layout });
  }

  /** Skips stand in the store before their pack can. False: the run is being stopped, and the store did not answer. */
  async #noteSkips({ work, skipped }: Finished): Promise<boolean> {
    if (skipped.length === 0) return true;
    const { identity, store, log, random } = this.#options;
    const { batch } = work;
    log.warn("rows.skipped", { batch, rows: skipped.length, reason: skipped[0]!.reason });
    const signal = this.#stop;
    try {
      const put = () => putSkips(store, { runId: identity, batch, rows: skipped }, signal);
      await withRetries(put, { log, random, signal });
      return true;
    } catch (error) {
      if (signal.aborted) return false;
      throw error;
    }
  }

  /** null: the disk is full after all, and the batch was given back. */
  async #pack(layout: PackLayout, reservation: Reservation, outcome: Finished): Promise<ReadyPack | null> {
    const { prepared, packStage } = this.#options;
    const { shape } = prepared.plan.options;
    this.#packing += 1;
    packStage.enter("pack", "busy");
    try {
      const outcomes = this.#outcomesOf(layout, outcome);
      return await reservation.finish({ layout, shape, facts: this.#facts, outcomes });
    } catch (error) {
      if (!(error instanceof RunError) || error.remedy !== "retry") throw error;
      await this.#giveBack(layout.batch, error.message);
      return null;
    } finally {
      this.#packing -= 1;
      if (this.#packing === 0) packStage.enter("pack", "starved");
    }
  }

  #outcomesOf(layout: PackLayout, outcome: Finished): SampleOutcome[] {
    const { rows } = this.#options.prepared;
    const states = new Map<number, SampleStates>(outcome.samples.map((sample) => [sample.row, sample]));
    const skipped = new Map(outcome.skipped.map(({ row, reason }) => [row, reason]));
    return layout.samples.map(({ row, tokens }): SampleOutcome => {
      const reason = skipped.get(row);
      if (reason !== undefined) return { kind: "skipped", reason };
      return {
        kind: "done",
        ids: rows.ids(row).subarray(0, tokens),
        lossMask: rows.lossMask(row)?.subarray(0, tokens) ?? null,
        statesCrc32c: states.get(row)!.crc32c,
      };
    });
  }

  #claim(batch: number): Claimed {
    const claimed = this.#claimed.get(batch);
    if (!claimed) throw new Error(`batch ${batch} is in no engine`);
    return claimed;
  }
}
