import type { StageSeconds } from "../base/stage.ts";
import { Latency } from "./latency.ts";
import type { RequestSample } from "./metered-store.ts";
import type { AttemptSeconds } from "./upload-pack.ts";

/** What the uploads of a session have come to, for status and metrics. */
export interface UploadFigures {
  uploadedBytes: number;
  committedBytes: number;
  committed: number;
  retries: number;
  throttled: number;
  /** PUTs that had succeeded though their answer was lost. */
  lostResponses: number;
  /** Verifications that did not find what was sent. */
  verifyFailures: number;
  /** Of PUTs, over the newest 512; null before the first. */
  putP50Ms: number | null;
  putP95Ms: number | null;
  requests: { op: RequestSample["op"]; outcome: RequestSample["outcome"]; count: number }[];
  retryReasons: { reason: string; count: number }[];
  requestSeconds: ReturnType<Latency["histogram"]>;
  /** Seconds over all connections; `disk` is reading and deleting. */
  stages: { disk: StageSeconds; upload: StageSeconds; verify: StageSeconds };
}

export class UploadTally {
  uploadedBytes = 0;
  committedBytes = 0;
  committed = 0;
  throttled = 0;
  lostResponses = 0;
  verifyFailures = 0;
  readonly #puts = new Latency();
  readonly #all = new Latency();
  readonly #requests = new Map<string, number>();
  readonly #retries = new Map<string, number>();
  readonly #stages = { disk: noSeconds(), upload: noSeconds(), verify: noSeconds() };
  #idleSinceMs: number;

  constructor(nowMs: number) {
    this.#idleSinceMs = nowMs;
  }

  attempt(seconds: AttemptSeconds, requests: readonly RequestSample[]): void {
    const { disk, upload, verify } = this.#stages;
    disk.busy += seconds.disk;
    upload.busy += seconds.upload;
    verify.busy += seconds.verify;
    verify.starved += seconds.disk + seconds.upload;
    for (const { op, outcome, seconds: took } of requests) {
      bump(this.#requests, `${op} ${outcome}`);
      this.#all.add(took);
      if (op === "put") this.#puts.add(took);
    }
  }

  retry(reason: string): void {
    bump(this.#retries, reason);
  }

  /** `connections` have been idle since the last call: starved of packs, or blocked by store, limit or memory. */
  idle(nowMs: number, connections: number, state: "starved" | "blocked"): void {
    this.#stages.upload[state] += (Math.max(0, connections) * (nowMs - this.#idleSinceMs)) / 1000;
    this.#idleSinceMs = nowMs;
  }

  figures(): UploadFigures {
    const { uploadedBytes, committedBytes, committed, throttled, lostResponses, verifyFailures } = this;
    const { disk, upload, verify } = this.#stages;
    const retryReasons = [...this.#retries].map(([reason, count]) => ({ reason, count }));
    return {
      uploadedBytes,
      committedBytes,
      committed,
      throttled,
      lostResponses,
      verifyFailures,
      retries: retryReasons.reduce((sum, { count }) => sum + count, 0),
      retryReasons,
      putP50Ms: this.#puts.percentileMs(0.5),
      putP95Ms: this.#puts.percentileMs(0.95),
      requests: [...this.#requests].map(([name, count]) => {
        const [op, outcome] = name.split(" ") as [RequestSample["op"], RequestSample["outcome"]];
        return { op, outcome, count };
      }),
      requestSeconds: this.#all.histogram(),
      stages: { disk: { ...disk }, upload: { ...upload }, verify: { ...verify } },
    };
  }
}

function bump(counts: Map<string, number>, name: string): void {
  counts.set(name, (counts.get(name) ?? 0) + 1);
}

function noSeconds(): StageSeconds {
  return { busy: 0, starved: 0, blocked: 0 };
}
