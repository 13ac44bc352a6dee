import { readModelConfig } from "../../model/config.ts";
import { toBlocks } from "../../model/taps.ts";
import { openWeights } from "../../model/weights.ts";
import type { Answer, CheckRequest, ExtractRequest, LoadRequest, Request } from "../protocol.ts";
import { batchIndices } from "./batch.ts";
import { ExtractJob, type JobSample } from "./extract-job.ts";
import { Extractor } from "./extractor.ts";
import { badRequest, type Failure, failureOf } from "./failure.ts";
import { cacheBytes, type ForwardLimits, formForward, needsChunks } from "./forward-plan.ts";
import { Gate } from "./gate.ts";
import { type EngineSettings, readSettings } from "./settings.ts";
import { needSupported, type SupportedModel } from "./support.ts";

export interface OnnxEngineOptions {
  send: (answer: Answer) => void;
  machine: { cores: number; memoryBytes: number };
  nowMs: () => number;
}

/** A loaded model and all that belongs to it. */
interface Loaded {
  model: SupportedModel;
  taps: readonly number[];
  settings: EngineSettings;
  extractor: Extractor;
  gate: Gate;
}

/** Requests outstanding that keep the engine full while one answer travels. */
const SLOT_BATCHES = 4;

/**
 * The engine behind the protocol: takes requests as they come, computes one forward at a time over what all
 * outstanding extracts wait for, and sends the answers. A failure nobody expected is answered as a crash and
 * thrown, to end the process.
 */
export class OnnxEngine {
  readonly #options: OnnxEngineOptions;
  #loaded: Loaded | null = null;
  /** In order of arrival. */
  readonly #jobs: ExtractJob[] = [];
  readonly #others: (LoadRequest | CheckRequest)[] = [];
  #isRunning = false;

  constructor(options: OnnxEngineOptions) {
    this.#options = options;
  }

  receive(request: Exclude<Request, { type: "shutdown" }>): void {
    if (request.type === "extract") this.#admit(request);
    else this.#others.push(request);
    if (!this.#isRunning) this.#owned(this.#run());
  }

  /** A rejection here is an unhandled one: the worker dies of it, and the child with exit 70. */
  #owned(running: Promise<void>): void {
    running.catch((error: unknown) => {
      setImmediate(() => {
        throw error;
      });
    });
  }

  async #run(): Promise<void> {
    this.#isRunning = true;
    for (;;) {
      const other = this.#others.shift();
      if (other) await this.#answering(other.id, () => this.#do(other));
      else if (this.#jobs.length > 0) await this.#forward(this.#needLoaded());
      else break;
      // Requests that came meanwhile are let in.
      await new Promise((resolve) => setImmediate(resolve));
    }
    this.#isRunning = false;
  }

  async #do(request: LoadRequest | CheckRequest): Promise<void> {
    if (request.type === "load") {
      await this.#load(request);
      return;
    }
    const { gate } = this.#needLoaded();
    const results = await gate.check(request, (done, total) =>
      this.#options.send({ type: "progress", id: request.id, tokens_done: done, tokens_total: total }),
    );
    this.#options.send({ type: "checked", id: request.id, results });
  }

  async #load(request: LoadRequest): Promise<void> {
    const { machine, send } = this.#options;
    if (request.dtype !== "auto" && request.dtype !== "float32") {
      this.#fail(request.id, [], badRequest(`expected dtype float32 or auto, found ${request.dtype}`));
      return;
    }
    if (request.device !== null && request.device !== "cpu") {
      this.#fail(request.id, [], badRequest(`expected the device cpu, found ${request.device}`));
      return;
    }
    const model = needSupported(readModelConfig(request.model), request.model);
    const taps = toBlocks(request.taps, { blocks: model.blocks, as: "forebay" });
    const settings = readSettings(request.options, machine);
    const parts = { model, weights: openWeights(request.model), taps, settings };
    const extractor = await Extractor.open(parts);
    this.#loaded = { ...parts, extractor, gate: new Gate({ ...parts, extractor }) };
    send({
      type: "loaded",
      id: request.id,
      arch: model.architecture,
      blocks: model.blocks,
      hidden: model.hidden,
      vocab: model.vocab,
      positions: model.positions,
      dtype: "float32",
      kernels: ["onnxruntime-cpu"],
      slots: { tokens: 2 * settings.forwardTokens, batches: SLOT_BATCHES },
      forward_tokens: settings.forwardTokens,
      checks: ["injection", "pad-independence", "greedy"],
    });
  }

  /** Takes an extract in: refuses the rows that cannot be done, queues the others. */
  #admit(request: ExtractRequest): void {
    const loaded = this.#loaded;
    if (!loaded) {
      this.#fail(request.id, [], badRequest("expected load before extract"));
      return;
    }
    const { model, taps } = loaded;
    let job: ExtractJob;
    try {
      job = new ExtractJob(request, { taps: taps.length, hidden: model.hidden });
    } catch (error) {
      this.#fail(request.id, [], failureOf(error));
      return;
    }
    for (const sample of [...job.waiting]) {
      const failure = refusal(sample, loaded);
      if (failure) this.#failSamples([sample], failure);
    }
    if (job.waiting.size > 0) this.#jobs.push(job);
    else job.close();
  }

  async #forward({ model, settings, extractor }: Loaded): Promise<void> {
    const limits = forwardLimits(model, settings);
    const waiting = this.#jobs.flatMap((job, request) =>
      [...job.waiting].map((sample) => ({ sample, request, tokens: sample.ids.length })),
    );
    const samples = formForward(waiting, limits).map(({ sample }) => sample);
    try {
      if (needsChunks(samples[0]!.ids.length, limits)) await this.#prefill(extractor, samples[0]!);
      else await this.#forwardBatch(extractor, samples);
    } catch (error) {
      const failure = failureOf(error);
      if (failure.kind === "oom")
        settings.forwardTokens = Math.max(1, Math.floor(settings.forwardTokens / 2));
      this.#failSamples(samples, failure);
      if (failure.kind === "crash") throw error;
    }
    this.#closeFinished();
  }

  async #forwardBatch(extractor: Extractor, samples: JobSample[]): Promise<void> {
    const { nowMs } = this.#options;
    const startMs = nowMs();
    const batch = batchIndices(samples.map((sample) => sample.ids));
    const forward = await extractor.forward(batch);
    const tookMs = nowMs() - startMs;
    let startRow = 0;
    for (const sample of samples) {
      const endRow = startRow + sample.ids.length;
      sample.job.tookMs((tookMs * sample.ids.length) / batch.tokens);
      this.#write(sample, batch.ids.subarray(startRow, endRow), { forward, startRow, endRow });
      startRow = endRow;
    }
    this.#progress(samples);
  }

  async #prefill(extractor: Extractor, sample: JobSample): Promise<void> {
    const { nowMs } = this.#options;
    let startMs = nowMs();
    let start = 0;
    for await (const forward of extractor.prefill(sample.ids)) {
      sample.job.tookMs(nowMs() - startMs);
      const ids = Int32Array.from(sample.ids.slice(start, start + forward.tokens));
      sample.job.write(sample, ids, { forward, startRow: 0, endRow: forward.tokens }, nowMs);
      start += forward.tokens;
      if (start === sample.ids.length) sample.job.finish(sample);
      this.#progress([sample]);
      startMs = nowMs();
    }
  }

  /** A file that cannot be written fails its sample, not the others of the forward. */
  #write(sample: JobSample, ids: Int32Array, rows: Parameters<ExtractJob["write"]>[2]): void {
    try {
      sample.job.write(sample, ids, rows, this.#options.nowMs);
      sample.job.finish(sample);
    } catch (error) {
      this.#failSamples([sample], failureOf(error));
    }
  }

  #progress(samples: JobSample[]): void {
    for (const job of new Set(samples.map((sample) => sample.job))) {
      if (!job.isAnswered) this.#options.send({ type: "progress", id: job.id, ...job.progress });
    }
  }

  #closeFinished(): void {
    for (const job of this.#jobs.filter((candidate) => candidate.waiting.size === 0)) {
      this.#jobs.splice(this.#jobs.indexOf(job), 1);
      job.close();
      if (!job.isAnswered) this.#options.send({ type: "states", ...job.states() });
    }
  }

  #failSamples(samples: JobSample[], failure: Failure): void {
    const left = samples.filter((sample) => sample.job.waiting.delete(sample));
    for (const job of new Set(left.map((sample) => sample.job))) {
      const rows = left.filter((sample) => sample.job === job).map((sample) => sample.row);
      this.#fail(job.id, rows, failure);
    }
  }

  async #answering(id: number, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      const failure = failureOf(error);
      this.#fail(id, [], failure);
      if (failure.kind === "crash") throw error;
    }
  }

  #fail(id: number, rows: number[], failure: Failure): void {
    this.#options.send({ type: "error", id, rows, ...failure });
  }

  #needLoaded(): Loaded {
    if (!this.#loaded) throw new Error("nothing is loaded");
    return this.#loaded;
  }
}

function forwardLimits(model: SupportedModel, settings: EngineSettings): ForwardLimits {
  return { ...settings, heads: model.decoder.heads };
}

/** Why `sample` cannot be computed, or null. */
function refusal(sample: JobSample, { model, taps, settings }: Loaded): Failure | null {
  const tokens = sample.ids.length;
  const outside = sample.ids.find((id) => id >= model.vocab);
  if (outside !== undefined) {
    return badRequest(`row ${sample.row}: expected ids below ${model.vocab}, found ${outside}`);
  }
  if (model.positions !== null && tokens > model.positions) {
    return badRequest(`row ${sample.row}: expected at most ${model.positions} tokens, found ${tokens}`);
  }
  const endByte = sample.offset + tokens * taps.length * model.hidden * 2;
  if (endByte > sample.job.fileBytes) {
    return badRequest(
      `row ${sample.row}: its states end at byte ${endByte}, the file has ${sample.job.fileBytes}`,
    );
  }
  const needBytes = cacheBytes(tokens, { ...model.decoder, blocks: taps.at(-1)! + 1 });
  if (needsChunks(tokens, forwardLimits(model, settings)) && needBytes > settings.cacheBytes) {
    const message = `row ${sample.row}: keys and values of ${tokens} tokens take ${needBytes} bytes, over the cap of ${settings.cacheBytes}; raise memory_bytes`;
    return { kind: "oom", errno: null, message, retry: "no" };
  }
  return null;
}
