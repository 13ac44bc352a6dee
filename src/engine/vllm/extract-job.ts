import { statSync } from "node:fs";
import type { ExtractRequest, ExtractSample, SampleStates, States } from "../protocol.ts";

/** One sample of an extract request, from its arrival until it is answered. */
export interface JobSample extends ExtractSample {
  job: ExtractJob;
}

/** One extract request: what of it is not answered yet, and what is done. */
export class ExtractJob {
  readonly request: ExtractRequest;
  readonly samples: readonly JobSample[];
  /** The file is written by the copier's thread; a device has no size to keep within. */
  readonly fileBytes: number;
  readonly #startMs: number;
  readonly #unanswered: Set<JobSample>;
  readonly #done: SampleStates[] = [];
  readonly #tokensTotal: number;
  #tokensDone = 0;
  #writeSeconds = 0;

  /** Throws the system error of a file that is not there. */
  constructor(request: ExtractRequest, nowMs: number) {
    const stat = statSync(request.file);
    this.request = request;
    this.fileBytes = stat.isFile() ? stat.size : Number.POSITIVE_INFINITY;
    this.samples = request.samples.map((sample) => ({ ...sample, job: this }));
    this.#unanswered = new Set(this.samples);
    this.#tokensTotal = request.samples.reduce((sum, { ids }) => sum + ids.length, 0);
    this.#startMs = nowMs;
  }

  get isOver(): boolean {
    return this.#unanswered.size === 0;
  }

  /** Every row has failed, which is its last answer: nothing more may be said of it. */
  get isAllFailed(): boolean {
    return this.isOver && this.#done.length === 0;
  }

  get progress(): { id: number; tokens_done: number; tokens_total: number } {
    return { id: this.request.id, tokens_done: this.#tokensDone, tokens_total: this.#tokensTotal };
  }

  finish(sample: JobSample, states: Omit<SampleStates, "row">, writeSeconds: number): void {
    this.#unanswered.delete(sample);
    this.#done.push({ row: sample.row, ...states });
    this.#tokensDone += sample.ids.length;
    this.#writeSeconds += writeSeconds;
  }

  fail(sample: JobSample): void {
    this.#unanswered.delete(sample);
  }

  /** The last answer. Forwards are the server's: all but our own copying counts as theirs. */
  states(nowMs: number): Omit<States, "type"> {
    const seconds = (nowMs - this.#startMs) / 1000;
    return {
      id: this.request.id,
      attempt: this.request.attempt,
      samples: this.#done,
      seconds: { forward: Math.max(0, seconds - this.#writeSeconds), write: this.#writeSeconds },
    };
  }
}
