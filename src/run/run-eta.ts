import { attentionShare, type ForwardCost } from "../model/forward-cost.ts";
import { type Eta, EtaLog, estimateEta } from "./eta.ts";
import type { BoardSources } from "./pipeline.ts";
import type { Amount, Tally } from "./tally.ts";

/** Seconds that a slot was idle, on average: slots come and go while the seconds of all of them add up. */
interface Idle {
  seconds: number;
  seen: number;
}

/** What the estimate of this session's end is made from: it is told what is done, and sees for itself who waits. */
export class RunEta {
  readonly #nowMs: () => number;
  readonly #sources: BoardSources;
  readonly #tally: Tally;
  readonly #log: EtaLog;
  /** See EtaInput. */
  readonly attentionShare: number;
  /** Of engines, for want of room. */
  readonly #blocked: Idle = { seconds: 0, seen: 0 };
  /** Of connections, for want of packs. */
  readonly #starved: Idle = { seconds: 0, seen: 0 };

  /** Made when the first batch can be handed out. `nowMs`: monotonic. */
  constructor(nowMs: () => number, run: { sources: BoardSources; tally: Tally; cost: ForwardCost | null }) {
    this.#nowMs = nowMs;
    this.#sources = run.sources;
    this.#tally = run.tally;
    this.attentionShare = run.cost ? attentionShare(run.cost) : 0;
    this.#log = new EtaLog(nowMs() / 1000);
    this.#look();
    // What was idle before does not count.
    for (const idle of [this.#blocked, this.#starved]) idle.seconds = 0;
  }

  computed(amount: Amount): void {
    this.#look();
    this.#log.batchComputed(this.#nowMs() / 1000, amount, this.#blocked.seconds);
  }

  verified(bytes: number): void {
    this.#look();
    this.#log.packVerified(this.#nowMs() / 1000, bytes, this.#starved.seconds);
  }

  /** Batches that the engines hold at once. */
  get slots(): number {
    return Math.max(1, this.#tally.at.engine.batches);
  }

  /** `wallMs`: Unix milliseconds of now. */
  estimate(wallMs: number): Eta {
    const tally = this.#tally;
    return estimateEta({
      nowS: this.#nowMs() / 1000,
      nowMs: wallMs,
      log: this.#log,
      toCompute: tally.toCompute(),
      bytesToVerify: tally.total.bytes - tally.committed.bytes,
      slots: this.slots,
      attentionShare: this.attentionShare,
      drainS: (this.#sources.uploader.stats().putP50Ms ?? 0) / 1000,
    });
  }

  #look(): void {
    const compute = this.#sources.fleet()?.stage;
    if (compute) accrue(this.#blocked, compute.seconds().blocked, compute.slots);
    const { stages, limit } = this.#sources.uploader.stats();
    accrue(this.#starved, stages.upload.starved, limit);
  }
}

/** Each stretch is shared by the slots of its time. */
function accrue(idle: Idle, totalS: number, slots: number): void {
  idle.seconds += Math.max(0, totalS - idle.seen) / Math.max(1, slots);
  idle.seen = totalS;
}
