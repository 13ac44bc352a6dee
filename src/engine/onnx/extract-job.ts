import { closeSync, fstatSync, openSync, writeSync } from "node:fs";
import type { ExtractRequest, ExtractSample, SampleStates, States } from "../protocol.ts";
import { type ForwardRows, SampleSummary } from "./sample-states.ts";

/** One sample of an extract request, from its arrival until it is answered. */
export interface JobSample extends ExtractSample {
  job: ExtractJob;
  summary: SampleSummary;
}

/** One extract request: its file, what of it still waits, and what is done. */
export class ExtractJob {
  readonly id: number;
  readonly request: ExtractRequest;
  readonly waiting: Set<JobSample>;
  readonly #fd: number;
  readonly #tokensTotal: number;
  #done: SampleStates[] = [];
  #tokensDone = 0;
  #forwardMs = 0;
  #writeMs = 0;

  /** Opens the file. Throws its system error. */
  constructor(request: ExtractRequest, shape: { taps: number; hidden: number }) {
    this.id = request.id;
    this.request = request;
    this.#fd = openSync(request.file, "r+");
    this.#tokensTotal = request.samples.reduce((sum, sample) => sum + sample.ids.length, 0);
    this.waiting = new Set(
      request.samples.map((sample) => ({
        ...sample,
        job: this,
        summary: new SampleSummary(shape.taps, shape.hidden),
      })),
    );
  }

  /** Its size; a device has none to keep within. */
  get fileBytes(): number {
    const stat = fstatSync(this.#fd);
    return stat.isFile() ? stat.size : Number.POSITIVE_INFINITY;
  }

  /** Every row has failed, which is its last answer: nothing more may be said of it. */
  get isAnswered(): boolean {
    return this.waiting.size === 0 && this.#done.length === 0;
  }

  get progress(): { tokens_done: number; tokens_total: number } {
    return { tokens_done: this.#tokensDone, tokens_total: this.#tokensTotal };
  }

  /** Writes the next rows of `sample` to their place. Throws the system error of a write that fails. */
  write(sample: JobSample, ids: Int32Array, rows: ForwardRows, nowMs: () => number): void {
    const startMs = nowMs();
    const startByte = sample.offset + sample.summary.bytes;
    const bytes = sample.summary.add(ids, rows);
    for (let written = 0; written < bytes.byteLength; ) {
      written += writeSync(this.#fd, bytes, written, bytes.byteLength - written, startByte + written);
    }
    this.#tokensDone += ids.length;
    this.#writeMs += nowMs() - startMs;
  }

  /** Its share of a forward's time. */
  tookMs(ms: number): void {
    this.#forwardMs += ms;
  }

  finish(sample: JobSample): void {
    this.waiting.delete(sample);
    this.#done.push(sample.summary.answer(sample.row));
  }

  /** The last answer, once nothing waits. */
  states(): Omit<States, "type"> {
    return {
      id: this.id,
      attempt: this.request.attempt,
      samples: this.#done,
      seconds: { forward: this.#forwardMs / 1000, write: this.#writeMs / 1000 },
    };
  }

  close(): void {
    closeSync(this.#fd);
  }
}
