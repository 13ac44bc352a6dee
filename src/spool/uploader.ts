import { availableParallelism } from "node:os";
import { fullJitterMs } from "../base/backoff.ts";
import { Bell } from "../base/bell.ts";
import { describeError, EXIT, type ExitCode, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { PackExpectation } from "../pack/check.ts";
import type { StoreErrorKind, StoreSpec, StoreTraits } from "../store/store.ts";
import { BufferPool } from "./buffer-pool.ts";
import { describeDisk } from "./disk-fault.ts";
import { type ErrorWire, fromWire, toWire } from "./error-wire.ts";
import { bufferBytes, isStreamed } from "./file-body.ts";
import { workerUrl } from "./files-client.ts";
import { checkUploads, type Limiter, limiterFor, type Uploads } from "./limiter.ts";
import type { RequestSample } from "./metered-store.ts";
import type { ReadyPack } from "./reservation.ts";
import type { Spool } from "./spool.ts";
import { StoreGate } from "./store-gate.ts";
import type { AttemptOutcome, AttemptResult } from "./upload-pack.ts";
import { type QueuedPack, UploadQueue } from "./upload-queue.ts";
import { type UploadFigures, UploadTally } from "./upload-tally.ts";
import { UploadThreads } from "./upload-threads.ts";

export interface UploaderOptions {
  spool: Spool;
  spec: StoreSpec;
  traits: StoreTraits;
  /** Connections: found by trying, or told. 1 to `UPLOADS_MAX`. */
  uploads: Uploads;
  /** Memory for packs in flight over all threads, or for what is read of them; one larger pack travels alone. */
  inflightBytes: number;
  /** Threads. Default: cores, at most 4. */
  threads?: number;
  log: Log;
  /** Monotonic. */
  nowMs: () => number;
  random: () => number;
  onEvent: (event: UploaderEvent) => void;
  /** How often a blocked store or pack is tried again. Default 60,000. */
  reprobeMs?: number;
  /** Entry of the threads; for tests that need them to die. */
  threadUrl?: URL;
  /** Delays between attempts while the store is down or answers errors. */
  backoff?: { baseMs: number; capMs: number };
}

export type UploaderEvent =
  /** The store accepted the bytes; not yet verified. */
  | { kind: "uploaded"; batch: number; bytes: number }
  /** Verified by a separate request, file deleted, room given back. `already`: another whole pack was there. */
  | { kind: "committed"; batch: number; bytes: number; how: "created" | "ours" | "already" }
  /** The file is spoiled (in quarantine/ now) or gone: the batch must be computed again. */
  | { kind: "requeue"; batch: number; reason: string }
  /** A person is needed: by the store (`batch` null) or by one key (the others go on). Tried again by itself. */
  | { kind: "blocked"; batch: number | null; reason: string; action: string | null; exit: ExitCode }
  | { kind: "unblocked"; batch: number | null }
  /** The store does not answer; tried again by itself, one pack at a time. */
  | { kind: "down"; reason: string }
  | { kind: "up" }
  | { kind: "retry"; batch: number; reason: string; delayMs: number }
  | { kind: "throttled"; limit: number }
  /** Cannot go on (exit identity, disk): stop the run. Files are kept. */
  | { kind: "failed"; error: RunError };

export interface UploaderStats extends UploadFigures {
  /** Packs handed over and not yet committed, those in flight and stuck included. */
  queue: number;
  inflight: number;
  inflightBytes: number;
  limit: number;
  uploads: Uploads;
  health: "ok" | "down" | "blocked";
  /** Batches whose key needs a person. */
  stuck: number[];
}

interface Flight {
  entry: QueuedPack;
  buffer: SharedArrayBuffer;
  isProbe: boolean;
}

/**
 * Takes packs from ready/ to the store: upload, verify, evict, each step only after the one before it is proven.
 * Decides here, on the main thread, what is tried when; the threads only make attempts. It never gives up on a pack:
 * whatever happens the file stays until its object is verified, and the caller decides how long to wait.
 */
export class Uploader {
  readonly #options: Required<UploaderOptions>;
  readonly #queue = new UploadQueue();
  readonly #flights = new Map<number, Flight>();
  readonly #threads: UploadThreads;
  readonly #pool: BufferPool;
  readonly #gate: StoreGate;
  readonly #tally: UploadTally;
  /** Packs have landed. */
  readonly #changes = new Bell();
  #limiter: Limiter;
  #uploads: Uploads;
  /** Rises when the credentials are to be read anew. */
  #generation = 0;
  #nextId = 0;
  #timer: NodeJS.Timeout | null = null;
  #events: UploaderEvent[] = [];
  /** Something failed that more attempts would only repeat: nothing new is started. */
  #halted = false;
  #closed = false;

  constructor(options: UploaderOptions) {
    this.#options = {
      threads: Math.min(4, availableParallelism()),
      threadUrl: workerUrl("upload-worker"),
      reprobeMs: 60_000,
      backoff: { baseMs: 250, capMs: 10_000 },
      ...options,
    };
    this.#pool = new BufferPool(options.inflightBytes);
    this.#uploads = checkUploads(options.uploads);
    this.#limiter = limiterFor(options.uploads);
    this.#gate = new StoreGate(this.#options);
    this.#tally = new UploadTally(options.nowMs());
    this.#threads = new UploadThreads({
      count: this.#options.threads,
      url: this.#options.threadUrl,
      spec: options.spec,
      onAnswer: ({ id, result, requests }) => this.#land(id, result, requests),
      onDeath: (death) => this.#mourn(death),
    });
  }

  /**
   * Takes over a pack in ready/. `lookFirst`: it may be in the store already (found at the start, a resumed run).
   * Each batch once: throws a plain Error where it is here already.
   */
  enqueue(pack: ReadyPack, expected: PackExpectation, options: { lookFirst?: boolean } = {}): void {
    // Until now idle connections lacked work: what comes now must not make that look like waiting.
    this.#account();
    this.#queue.add(pack, expected, options.lookFirst ?? false);
    this.#launch();
  }

  /** Of the living run: packs in flight are not disturbed. Throws a usage error for a number out of range. */
  setLimits(limits: { uploads?: Uploads; inflightBytes?: number }): void {
    if (limits.uploads !== undefined) {
      this.#uploads = checkUploads(limits.uploads);
      this.#account();
      this.#limiter = limiterFor(limits.uploads, this.#limiter.limit);
    }
    if (limits.inflightBytes !== undefined) this.#pool.bytesMax = limits.inflightBytes;
    this.#launch();
  }

  /**
   * Resolves when every pack is committed or stuck at its key, or after `failed` or `close`.
   * Rejects with the signal's reason.
   */
  async idle(signal?: AbortSignal): Promise<void> {
    while (!this.#closed && !this.#halted && this.#queue.stuck.length < this.#queue.size) {
      await this.#changes.wait(signal);
    }
  }

  /**
   * For a graceful stop: goes on until all is committed, nothing can move (the store is down or blocked), or the
   * deadline, whichever is first; then aborts what is in flight. Returns the number of packs left in ready/.
   */
  async drain(options: { deadlineMs: number }): Promise<{ left: number }> {
    const deadline = AbortSignal.timeout(Math.ceil(options.deadlineMs));
    try {
      while (this.#queue.size > 0 && (this.#flights.size > 0 || this.#canMove())) {
        await this.#changes.wait(deadline);
      }
    } catch {
      // The deadline: what is not committed by now stays in ready/.
    }
    await this.close();
    return { left: this.#queue.size };
  }

  /** Aborts what is in flight and ends the threads. Files stay in ready/ unless their object was verified. */
  async close(): Promise<void> {
    this.#closed = true;
    if (this.#timer) clearTimeout(this.#timer);
    for (const id of this.#flights.keys()) this.#threads.abort(id);
    // An attempt may be at its unlink: its answer is worth a moment, so that the spool's ledger stays right.
    const patience = AbortSignal.timeout(2_000);
    try {
      while (this.#flights.size > 0) await this.#changes.wait(patience);
    } catch {
      // The thread hangs in a request or a file call: ending it is safe at any point.
    }
    await this.#threads.close();
    this.#changes.ring();
  }

  stats(): UploaderStats {
    this.#account();
    const figures = this.#tally.figures();
    // Engines that wait for room wait for the disk stage.
    figures.stages.disk.blocked = this.#options.spool.usage().waitedSeconds;
    return {
      ...figures,
      queue: this.#queue.size,
      inflight: this.#flights.size,
      inflightBytes: this.#pool.busyBytes,
      limit: this.#limiter.limit,
      uploads: this.#uploads,
      health: this.#gate.state,
      stuck: this.#queue.stuck,
    };
  }

  /** Starts whatever may start now, and sets the alarm for what may start later. */
  #launch(): void {
    if (this.#closed || this.#halted) return;
    this.#account();
    const nowMs = this.#options.nowMs();
    let wakeMs = Number.POSITIVE_INFINITY;
    const later = (dueMs: number) => {
      wakeMs = Math.min(wakeMs, dueMs);
    };
    for (const entry of this.#queue.due(nowMs, this.#gate, later)) {
      if (this.#gate.state !== "ok" && this.#isProbing()) break;
      if (this.#flights.size >= this.#limiter.limit) {
        this.#limiter.observe(nowMs, true);
        break;
      }
      const streamed = isStreamed(entry.pack.crc32c, this.#options.traits);
      const buffer = this.#pool.take(bufferBytes(entry.expected.layout.bytes, streamed));
      if (!buffer) break;
      this.#start(entry, buffer);
    }
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = Number.isFinite(wakeMs)
      ? setTimeout(() => this.#launch(), Math.max(1, wakeMs - nowMs)).unref()
      : null;
  }

  #start(entry: QueuedPack, buffer: SharedArrayBuffer): void {
    const id = this.#nextId++;
    const isProbe = this.#gate.state !== "ok";
    if (this.#gate.state === "blocked") this.#generation += 1;
    entry.state = "flying";
    entry.attempts += 1;
    this.#flights.set(id, { entry, buffer, isProbe });
    this.#threads.send({
      kind: "upload",
      id,
      job: {
        batch: entry.pack.batch,
        path: entry.pack.path,
        expected: entry.expected,
        crc32c: entry.pack.crc32c,
        traits: this.#options.traits,
        lookFirst: entry.lookFirst || isProbe,
      },
      buffer,
      generation: this.#generation,
    });
  }

  #land(id: number, result: AttemptResult, requests: readonly RequestSample[]): void {
    const flight = this.#flights.get(id);
    if (!flight) return;
    this.#account();
    this.#flights.delete(id);
    this.#pool.give(flight.buffer);
    this.#tally.attempt(result.seconds, requests);
    if (result.uploadedBytes > 0) {
      this.#tally.uploadedBytes += result.uploadedBytes;
      this.#emit({ kind: "uploaded", batch: flight.entry.pack.batch, bytes: result.uploadedBytes });
    }
    this.#settle(flight, result.outcome);
    this.#told();
  }

  /** Listeners hear of a change only when it is complete: they may call back. */
  #told(): void {
    for (const event of this.#events.splice(0)) this.#options.onEvent(event);
    this.#launch();
    this.#changes.ring();
  }

  #settle({ entry, isProbe }: Flight, outcome: AttemptOutcome): void {
    const { batch, bytes } = entry.pack;
    const { spool, log } = this.#options;
    switch (outcome.kind) {
      case "committed": {
        this.#served(isProbe);
        this.#queue.remove(batch);
        spool.evicted(batch);
        this.#limiter.completed(this.#options.nowMs(), bytes);
        this.#tally.committed += 1;
        this.#tally.committedBytes += bytes;
        if (outcome.how === "ours" && entry.attempts > 1) this.#tally.lostResponses += 1;
        if (outcome.how === "already") log.info("upload.already", { batch });
        if (entry.toldStuck) this.#emit({ kind: "unblocked", batch });
        this.#emit({ kind: "committed", batch, bytes, how: outcome.how });
        return;
      }
      case "spoiled":
        entry.state = "leaving";
        log.warn("upload.spoiled", { batch, reason: outcome.reason });
        spool.quarantine(batch).then(
          () => this.#requeue(batch, outcome.reason),
          (error: unknown) => this.#fail(entry, error),
        );
        return;
      case "vanished":
        spool.evicted(batch);
        this.#requeue(batch, "its file is gone from the spool");
        return;
      case "retry":
        this.#retry(entry, outcome.error, outcome.lookFirst, isProbe);
        return;
      case "blocked":
        entry.lookFirst = true;
        if (outcome.scope === "pack") this.#stick(entry, outcome.error, isProbe);
        else this.#block(entry, outcome.error);
        return;
      case "fatal":
        this.#fail(entry, fromWire(outcome.error));
    }
  }

  #requeue(batch: number, reason: string): void {
    this.#queue.remove(batch);
    this.#emit({ kind: "requeue", batch, reason });
    this.#told();
  }

  #fail(entry: QueuedPack, cause: unknown): void {
    const { batch, path } = entry.pack;
    const error = describeDisk(cause, path);
    entry.state = "stuck";
    entry.notBeforeMs = Number.POSITIVE_INFINITY;
    this.#options.log.error("upload.failed", { batch, reason: describeError(error) });
    const context = { op: "upload pack", subject: path, exit: EXIT.bug } as const;
    this.#halt(error instanceof RunError ? error : fromWire(toWire(error, context)));
    this.#told();
  }

  #retry(entry: QueuedPack, error: ErrorWire, lookFirst: boolean, isProbe: boolean): void {
    const { backoff, random, nowMs, log } = this.#options;
    const kind: StoreErrorKind | "disk" = error.store?.kind ?? "disk";
    entry.lookFirst = lookFirst;
    entry.state = "waiting";
    if (this.#closed) return;
    if (kind === "corrupt-answer") this.#tally.verifyFailures += 1;
    this.#tally.retry(kind);
    const retryAfterMs = error.store?.retryAfterMs ?? 0;
    const delayMs = Math.max(retryAfterMs, fullJitterMs(entry.failures, { ...backoff, random }));
    entry.failures += 1;
    entry.notBeforeMs = nowMs() + delayMs;
    if (retryAfterMs > 0) this.#queue.holdUntil(nowMs() + retryAfterMs);
    const batch = entry.pack.batch;
    log.debug("upload.retry", {
      batch,
      reason: error.message,
      kind,
      delay_ms: Math.round(delayMs),
      status: error.store?.status ?? null,
      code: error.store?.code ?? null,
      request_id: error.store?.requestId ?? null,
    });
    this.#emit({ kind: "retry", batch, reason: error.message, delayMs });

    // Too many open files is our own limit on connections.
    const isTooMuch = kind === "throttled" || error.errno === "EMFILE";
    if (isTooMuch) {
      this.#tally.throttled += 1;
      this.#limiter.throttled(nowMs());
      this.#emit({ kind: "throttled", limit: this.#limiter.limit });
    }
    // A probe that failed in any way waits for the gate's next turn.
    const countsForStore = isProbe || (!isTooMuch && kind !== "disk");
    if (countsForStore && this.#gate.failed(nowMs(), error.message, isProbe) === "down") {
      log.warn("upload.store-down", { reason: error.message });
      this.#emit({ kind: "down", reason: error.message });
    }
  }

  #block(entry: QueuedPack, error: ErrorWire): void {
    entry.state = "waiting";
    const { nowMs, log } = this.#options;
    if (this.#gate.blocked(nowMs(), error.message) === null) return;
    log.error("upload.blocked", { reason: error.message, action: error.hint ?? null });
    this.#emit({
      kind: "blocked",
      batch: null,
      reason: error.message,
      action: error.hint ?? null,
      exit: error.exit,
    });
  }

  #stick(entry: QueuedPack, error: ErrorWire, isProbe: boolean): void {
    const { nowMs, reprobeMs, log } = this.#options;
    this.#served(isProbe);
    this.#tally.verifyFailures += 1;
    entry.state = "stuck";
    entry.notBeforeMs = nowMs() + reprobeMs;
    if (entry.toldStuck) return;
    entry.toldStuck = true;
    log.error("upload.blocked", { batch: entry.pack.batch, reason: error.message });
    this.#emit({
      kind: "blocked",
      batch: entry.pack.batch,
      reason: error.message,
      action: error.hint ?? null,
      exit: error.exit,
    });
  }

  #served(isProbe: boolean): void {
    const change = this.#gate.served(isProbe);
    if (change === null) return;
    this.#queue.hurry();
    this.#options.log.info("upload.store-back", {});
    this.#emit(change === "unblocked" ? { kind: "unblocked", batch: null } : { kind: "up" });
  }

  /** The packs of a dead thread are tried again by another: the store may have any of them. */
  #mourn({ ids, reason, isHopeless }: { ids: number[]; reason: string; isHopeless: boolean }): void {
    this.#options.log.error("upload.thread-died", { reason, packs: ids.length });
    const context = { op: "upload packs", subject: "upload threads", exit: EXIT.bug } as const;
    if (isHopeless) {
      this.#halt(
        new RunError({
          ...context,
          message: `upload threads die one after the other: ${reason}`,
          safe: "packs in ready/ and in the store are not harmed",
        }),
      );
    }
    const error = toWire(new Error(`an upload thread died: ${reason}`), context);
    const seconds = { disk: 0, upload: 0, verify: 0 };
    for (const id of ids) {
      this.#land(id, { outcome: { kind: "retry", error, lookFirst: true }, seconds, uploadedBytes: 0 }, []);
    }
    this.#told();
  }

  #halt(error: RunError): void {
    // Packs in flight beside the first one often fail of the same thing.
    if (this.#halted) return;
    this.#halted = true;
    this.#emit({ kind: "failed", error });
  }

  /** Idle connections since the last look: starved of packs, or blocked by the store, its limit or our memory. */
  #account(): void {
    const idle = this.#limiter.limit - this.#flights.size;
    this.#tally.idle(this.#options.nowMs(), idle, this.#queue.waiting > 0 ? "blocked" : "starved");
  }

  #canMove(): boolean {
    return !this.#halted && this.#gate.state === "ok" && this.#queue.waiting > 0;
  }

  #isProbing(): boolean {
    for (const { isProbe } of this.#flights.values()) if (isProbe) return true;
    return false;
  }

  #emit(event: UploaderEvent): void {
    this.#events.push(event);
  }
}
