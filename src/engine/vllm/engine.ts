import { dirname } from "node:path";
import { type ModelConfig, readModelConfig } from "../../model/config.ts";
import { toBlocks } from "../../model/taps.ts";
import type { Answer, CheckRequest, ExtractRequest, LoadRequest, Request } from "../protocol.ts";
import { needStatesOf, type ServedModel, VllmClient } from "./client.ts";
import type { VllmTarget } from "./command.ts";
import type { CopyJob, CopyResult } from "./connector-file.ts";
import { ConnectorFolder } from "./connector-folder.ts";
import { ExtractJob, type JobSample } from "./extract-job.ts";
import { type Failure, failureOf, refused, serverGone } from "./failure.ts";
import { canCheckGreedy, checkGreedy } from "./greedy.ts";
import { Locks } from "./locks.ts";
import { removeConnectorFiles } from "./orphans.ts";
import { findServedModel } from "./served-model.ts";
import { VllmServer } from "./server.ts";
import { readSettings, type VllmSettings } from "./settings.ts";
import { waitForFile } from "./wait-for-file.ts";

export interface VllmEngineOptions {
  target: VllmTarget;
  send: (answer: Answer) => void;
  /** The child is to end: what is not answered will not be. Called once a `restart` error was sent. */
  onCrash: (error: unknown) => void;
  copy: (job: CopyJob) => Promise<CopyResult>;
  /** The GPUs of a server that is started here, as CUDA_VISIBLE_DEVICES names them; empty: not known. */
  devices: string[];
  pid: number;
  nowMs: () => number;
}

/** A server that has shown that it gives the states asked for. */
interface Loaded {
  directory: string;
  model: ModelConfig;
  taps: readonly number[];
  settings: VllmSettings;
  client: VllmClient;
  served: ServedModel;
  locks: Locks | null;
  /** The longest prompt; null: the server does not say. */
  promptTokensMax: number | null;
}

interface Answered extends CopyResult {
  nextToken: number | null;
}

/** vLLM's max_num_seqs by default (0.32); it queues what is more. */
const OPEN_MAX = 256;
/** Packs of 64 MiB of a 27B model hold 1,300 tokens: enough requests that tokens are what limits. */
const SLOT_BATCHES = 64;
/** Longer than two of vLLM's blocks of 16, which is what its prefix cache keeps. */
const PROBE_TOKENS = 40;
/** The connector came with 0.22. */
const LEAST_VERSION = [0, 22] as const;

/**
 * The engine behind the protocol: one HTTP request for each prompt, as many open as keep vLLM's batch full and the
 * connector's folder has room for; the states it leaves there are copied into the pack's file.
 */
export class VllmEngine {
  readonly #options: VllmEngineOptions;
  readonly #folder: ConnectorFolder;
  #server: VllmServer | null = null;
  #loaded: Loaded | null = null;
  readonly #queue: JobSample[] = [];
  #openTokens = 0;
  #sweeper: NodeJS.Timeout | null = null;
  #isOver = false;

  constructor(options: VllmEngineOptions) {
    this.#options = options;
    this.#folder = new ConnectorFolder(options.pid);
  }

  receive(request: Exclude<Request, { type: "shutdown" }>): void {
    if (request.type === "extract") this.#admit(request);
    else this.#answering(request.id, request.type === "load" ? this.#load(request) : this.#check(request));
  }

  /** Drops what is open, ends the server that was started here, and sweeps. */
  async stop(): Promise<void> {
    this.#isOver = true;
    if (this.#sweeper) clearInterval(this.#sweeper);
    this.#loaded?.client.close();
    this.#loaded?.locks?.close();
    await this.#server?.stop();
    this.#folder.sweep(true);
  }

  // --- load ---

  async #load(request: LoadRequest): Promise<void> {
    const model = readModelConfig(request.model);
    const taps = toBlocks(request.taps, { blocks: model.blocks, as: "forebay" });
    const settings = readSettings(request.options);
    const url = await this.#startServer(request, model, taps);
    const client = new VllmClient(url);
    const served = await this.#connect(client, request.model, settings);
    const version = await client.version();
    refuseOldVersion(version);
    const limits = [model.positions, served.maxModelTokens === null ? null : served.maxModelTokens - 1];
    const known = limits.filter((limit) => limit !== null);
    const loaded: Loaded = {
      directory: request.model,
      model,
      taps,
      settings,
      client,
      served,
      locks: Locks.find(),
      promptTokensMax: known.length === 0 ? null : Math.min(...known),
    };
    this.#loaded = loaded;
    const dtype = await this.#probe(loaded);
    if (request.dtype !== "auto" && request.dtype !== dtype) {
      throw refused(
        `expected a server that computes in ${request.dtype}, found states in ${dtype}: start it with --dtype`,
      );
    }
    this.#folder.sweep(this.#isOver);
    this.#sweeper = setInterval(() => this.#folder.sweep(this.#isOver), settings.sweepMs);
    this.#options.send({
      type: "loaded",
      id: request.id,
      arch: model.architecture,
      blocks: model.blocks,
      hidden: model.hidden,
      vocab: model.vocab,
      positions: loaded.promptTokensMax,
      dtype,
      kernels: [`vllm ${version ?? "of an unknown version"}`],
      devices: this.#options.devices,
      slots: { tokens: 2 * settings.forwardTokens, batches: SLOT_BATCHES },
      forward_tokens: settings.forwardTokens,
      checks: canCheckGreedy(model, taps, request.model) ? ["greedy"] : [],
    });
  }

  async #startServer(request: LoadRequest, model: ModelConfig, taps: readonly number[]): Promise<string> {
    const { target } = this.#options;
    if ("url" in target) return target.url;
    const forwardTokens = request.options.forward_tokens;
    this.#server = await VllmServer.start({
      program: target.program,
      model: request.model,
      taps,
      blocks: model.blocks,
      dtype: request.dtype,
      forwardTokens: typeof forwardTokens === "number" ? forwardTokens : null,
      positions: model.positions,
      extra: target.extra,
      onEnd: (reason) => {
        if (this.#loaded && !this.#isOver) this.#crash(serverGone(reason));
      },
    });
    this.#folder.found(this.#server.folder);
    return this.#server.url;
  }

  /** A server that was ended with the last child may just be coming back: it is waited for a little. */
  async #connect(client: VllmClient, directory: string, { connectMs }: VllmSettings): Promise<ServedModel> {
    const { nowMs } = this.#options;
    const endMs = nowMs() + connectMs;
    for (;;) {
      try {
        await client.needHealth();
        break;
      } catch (error) {
        if (failureOf(error).retry !== "restart" || nowMs() >= endMs) throw error;
        await new Promise((resolve) => setTimeout(resolve, 250));
      }
    }
    const models = await client.models();
    return this.#server ? models[0]! : findServedModel(models, directory);
  }

  /**
   * The same prompt twice: shows a connector that is off, other layers, another width, states of nothing, and (the
   * second time) a prefix cache. Returns what the server computes in.
   */
  async #probe(loaded: Loaded): Promise<string> {
    const { vocab } = loaded.model;
    const tokens = Math.min(PROBE_TOKENS, loaded.promptTokensMax ?? PROBE_TOKENS);
    const ids = Array.from({ length: tokens }, (_, i) => (i * 7_919 + 11) % vocab);
    const first = await this.#states(loaded, ids, null);
    const { sample } = await this.#states(loaded, ids, null);
    if (!sample.finite) throw refused("the server's states are not finite: start it with --dtype bfloat16");
    const zero = sample.stats.findIndex(({ absmax }) => absmax === 0);
    if (zero >= 0 || sample.constant) {
      throw refused(
        `the server's states of block ${loaded.taps[Math.max(0, zero)]} are all ${zero >= 0 ? "zero" : "one value"}, as some versions of vLLM give for hybrid models: use another version, or --engine transformers`,
      );
    }
    return DTYPE_NAMES[first.dtype] ?? first.dtype;
  }

  // --- extract ---

  #admit(request: ExtractRequest): void {
    const loaded = this.#loaded;
    let job: ExtractJob;
    try {
      if (!loaded) throw refused("expected load before extract");
      job = new ExtractJob(request, this.#options.nowMs());
    } catch (error) {
      this.#options.send({ type: "error", id: request.id, rows: [], ...failureOf(error) });
      return;
    }
    for (const sample of job.samples) {
      const reason = cannot(sample, loaded);
      if (reason === null) this.#queue.push(sample);
      else this.#fail(sample, refused(`row ${sample.row}: ${reason}`).failure);
    }
    this.#pump();
  }

  /** Opens as many requests as there is room for, in order of arrival. */
  #pump(): void {
    const loaded = this.#loaded;
    while (loaded && !this.#isOver && this.#queue[0] && this.#hasRoom(this.#queue[0], loaded)) {
      const sample = this.#queue.shift()!;
      this.#extract(sample, loaded).then(
        () => this.#pump(),
        (error: unknown) => this.#crash(error),
      );
    }
  }

  #hasRoom({ ids }: JobSample, { settings, taps, model }: Loaded): boolean {
    const open = this.#folder.openRequests;
    if (open === 0) return true;
    if (open >= OPEN_MAX || this.#openTokens + ids.length > 2 * settings.forwardTokens) return false;
    return this.#folder.hasRoom(fileBytes(ids.length, taps.length, model.hidden), settings.sharers);
  }

  /** Rejects only where the whole child is at fault. */
  async #extract(sample: JobSample, loaded: Loaded): Promise<void> {
    const { job, ids, offset, row } = sample;
    try {
      const { sample: states, seconds } = await this.#states(loaded, ids, { file: job.request.file, offset });
      job.finish(sample, states, seconds);
      this.#options.send({ type: "progress", ...job.progress });
      this.#finishIfOver(job);
    } catch (error) {
      const failure = failureOf(error);
      if (failure.retry === "restart") throw error;
      this.#fail(sample, { ...failure, message: `row ${row}: ${failure.message}` });
    }
  }

  /** One prompt through the server; its states go to `to`, or are only looked at. Removes the connector's files. */
  async #states(
    loaded: Loaded,
    ids: readonly number[],
    to: { file: string; offset: number } | null,
  ): Promise<Answered> {
    const { client, model, taps, served, settings, locks } = loaded;
    const { nowMs, copy } = this.#options;
    const expected = this.#folder.expect(fileBytes(ids.length, taps.length, model.hidden));
    const { requestId } = expected;
    this.#openTokens += ids.length;
    let named: string | null = null;
    try {
      const completion = await client.complete({ model: served.id, ids, requestId });
      named = completion.path;
      if (named) this.#folder.found(dirname(named));
      const path = needStatesOf(ids, completion);
      await waitForFile(path, {
        limitMs: settings.fileWaitMs,
        nowMs,
        isWell: () => client.isWell(),
        locks,
      });
      expected.hasCome();
      const place = to ?? { file: null, offset: 0 };
      const job = { path, ids: Int32Array.from(ids), taps: taps.length, hidden: model.hidden, ...place };
      const copied = await copy(job);
      removeConnectorFiles(path);
      return { ...copied, nextToken: completion.nextToken };
    } catch (error) {
      // What is not of our ids and not named by our request may belong to somebody else: it is left.
      if (named?.includes(requestId)) removeConnectorFiles(named);
      throw error;
    } finally {
      expected.close();
      this.#openTokens -= ids.length;
    }
  }

  #fail(sample: JobSample, failure: Failure): void {
    const { job, row } = sample;
    job.fail(sample);
    this.#options.send({ type: "error", id: job.request.id, rows: [row], ...failure });
    if (!job.isAllFailed) this.#finishIfOver(job);
  }

  #finishIfOver(job: ExtractJob): void {
    if (job.isOver) this.#options.send({ type: "states", ...job.states(this.#options.nowMs()) });
  }

  // --- check ---

  async #check(request: CheckRequest): Promise<void> {
    const loaded = this.#loaded;
    if (!loaded) throw refused("expected load before check");
    const { send } = this.#options;
    const other = request.kinds.find((kind) => kind !== "greedy");
    if (other) throw refused(`the vllm engine cannot check ${other}: nothing can be put back into a server`);
    const results = [];
    for (const _ of request.kinds) {
      const nextToken = async (ids: readonly number[]) => (await this.#states(loaded, ids, null)).nextToken;
      const onProgress = (done: number, total: number) =>
        send({ type: "progress", id: request.id, tokens_done: done, tokens_total: total });
      results.push(await checkGreedy({ ...loaded, request, nextToken, onProgress }));
    }
    send({ type: "checked", id: request.id, results });
  }

  // --- failures ---

  #answering(id: number, work: Promise<void>): void {
    work.catch((error: unknown) => {
      const failure = failureOf(error);
      this.#options.send({ type: "error", id, rows: [], ...failure });
      if (failure.retry === "restart") this.#options.onCrash(error);
    });
  }

  /** The server is gone, or we are broken: nothing that is open will be answered. */
  #crash(error: unknown): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#options.onCrash(error);
  }
}

const DTYPE_NAMES: Record<string, string> = { BF16: "bfloat16", F16: "float16", F32: "float32" };

/** Of a connector's file, at the widest that a model computes in by default. */
function fileBytes(tokens: number, taps: number, hidden: number): number {
  return tokens * (taps * hidden * 2 + 8) + 4_096;
}

/** Why `sample` is not even sent, or null. */
function cannot(sample: JobSample, loaded: Loaded | null): string | null {
  if (!loaded) return null;
  const { model, taps, promptTokensMax } = loaded;
  const { ids, offset, job } = sample;
  const outside = ids.find((id) => id >= model.vocab);
  if (outside !== undefined) return `expected ids below ${model.vocab}, found ${outside}`;
  if (promptTokensMax !== null && ids.length > promptTokensMax) {
    return `expected at most ${promptTokensMax} tokens (vLLM needs room for one more), found ${ids.length}: start it with a larger --max-model-len`;
  }
  const endByte = offset + ids.length * taps.length * model.hidden * 2;
  if (endByte > job.fileBytes) return `its states end at byte ${endByte}, the file has ${job.fileBytes}`;
  return null;
}

function refuseOldVersion(version: string | null): void {
  const match = /^v?(\d+)\.(\d+)/.exec(version ?? "");
  if (!match) return;
  const [major, minor] = [Number(match[1]), Number(match[2])];
  const isOld = major < LEAST_VERSION[0] || (major === LEAST_VERSION[0] && minor < LEAST_VERSION[1]);
  if (isOld) throw refused(`expected vLLM ${LEAST_VERSION.join(".")} or newer, found ${version}`);
}
