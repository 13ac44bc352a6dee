import { UPLOADS_MAX } from "../base/limits.ts";
import type { Stage } from "../base/stage.ts";
import type { Fleet } from "../engine/fleet.ts";
import type { Spool } from "../spool/spool.ts";
import type { Uploader } from "../spool/uploader.ts";
import type { StoreTraits } from "../store/store.ts";
import type { AdviceContext } from "./advice.ts";
import { BottleneckWatch } from "./bottleneck.ts";
import { Rate } from "./rate.ts";
import type { Bottleneck, StageStatus } from "./status.ts";
import type { Tally } from "./tally.ts";

/** The living parts that the document is read from, as they come up. */
export interface BoardSources {
  spool: Spool;
  uploader: Uploader;
  traits: StoreTraits;
  packStage: Stage;
  /** null before the first engine and between two rounds. */
  fleet: () => Fleet | null;
}

const RATE_WINDOW_S = 30;

/** The five stages from compute to verify as they are now, and the verdict which of them limits the run. */
export class Pipeline {
  /** Bytes of packs: finished by an engine, accepted by the store, confirmed by it. */
  readonly rates: Record<"produced" | "uploaded" | "verified", Rate>;
  readonly #sources: BoardSources;
  readonly #tally: Tally;
  readonly #nowMs: () => number;
  readonly #watch = new BottleneckWatch();
  #engineWriteS = 0;

  constructor(sources: BoardSources, tally: Tally, nowMs: () => number) {
    this.#sources = sources;
    this.#tally = tally;
    this.#nowMs = nowMs;
    const rate = () => new Rate(RATE_WINDOW_S, nowMs);
    this.rates = { produced: rate(), uploaded: rate(), verified: rate() };
  }

  /** An engine spent `seconds` writing states into the spool: it waited for the disk. */
  engineWrote(seconds: number): void {
    this.#engineWriteS += seconds;
  }

  stages(): StageStatus[] {
    const { spool, uploader, fleet, packStage } = this.#sources;
    const stats = uploader.stats();
    const compute = fleet()?.stage;
    const computeS = compute?.seconds() ?? { busy: 0, starved: 0, blocked: 0 };
    const writeS = Math.min(computeS.busy, this.#engineWriteS);
    const produced = this.rates.produced.perSecond();
    return [
      {
        name: "compute",
        slots: compute?.slots ?? 0,
        busy: computeS.busy - writeS,
        starved: computeS.starved,
        blocked: computeS.blocked + writeS,
        queue: this.#tally.at.engine.batches,
        capacity: null,
        rate: produced,
      },
      {
        name: "pack",
        slots: 1,
        ...packStage.seconds(),
        queue: 0,
        capacity: null,
        rate: produced,
      },
      {
        name: "disk",
        slots: 1,
        ...stats.stages.disk,
        busy: stats.stages.disk.busy + writeS,
        queue: spool.usage().waiting.count,
        capacity: null,
        rate: produced,
      },
      {
        name: "upload",
        slots: stats.limit,
        ...stats.stages.upload,
        queue: stats.queue,
        capacity: stats.limit,
        rate: this.rates.uploaded.perSecond(),
      },
      {
        name: "verify",
        slots: stats.limit,
        ...stats.stages.verify,
        queue: this.#tally.at.uploaded.batches,
        capacity: null,
        rate: this.rates.verified.perSecond(),
      },
    ];
  }

  /** Once a second: the verdict is about the last half minute. */
  look(): void {
    const stats = this.#sources.uploader.stats();
    this.#watch.look({
      atS: this.#nowMs() / 1000,
      stages: this.stages(),
      engineWriteS: this.#engineWriteS,
      uploads: {
        inflight: stats.inflight,
        limit: stats.limit,
        auto: stats.uploads === "auto",
        ceiling: UPLOADS_MAX,
        requests: stats.requests.reduce((sum, { op, count }) => sum + (op === "put" ? count : 0), 0),
        throttled: stats.throttled,
        mbPerS: this.rates.uploaded.perSecond() / 1e6,
      },
    });
  }

  verdict(context: AdviceContext): Bottleneck {
    return this.#watch.verdict(context);
  }
}
