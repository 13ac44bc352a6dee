import { join } from "node:path";
import { fullJitterMs } from "../base/backoff.ts";
import { EXIT } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { StatesShape } from "./check-states.ts";
import type { EngineCommand } from "./child.ts";
import type { Clock } from "./clock.ts";
import { Engine } from "./engine.ts";
import { EngineError } from "./engine-error.ts";
import type { Loaded, LoadRequest } from "./protocol.ts";
import type { EngineLimits } from "./watchdog.ts";

/** One engine of a fleet: what to start, and what to load in it. */
export interface FleetEngine {
  /** Unique: "onnx-0". */
  label: string;
  /** Its number, as the status document counts engines. */
  shard: number;
  command: EngineCommand;
  load: Omit<LoadRequest, "type" | "id">;
}

export interface LaneOptions {
  log: Log;
  clock: Clock;
  limits: Partial<EngineLimits>;
  random: () => number;
  shape: StatesShape;
  /** Each engine's stderr goes to `<label>.log` in it; null: nowhere. */
  stderrDirectory: string | null;
  restart: { baseMs: number; capMs: number };
  /** Deaths in a row, without a row that passed, after which an engine is given up. */
  deathsMax: number;
  /** Numbers a new life. */
  newLife: () => number;
  /** Something about a lane changed. */
  onChange: (lane: Lane) => void;
}

/** The facts of one engine for the status document (`EngineStatus` and `Shard` of run/status.ts). */
export interface LaneStatus {
  shard: number;
  name: string;
  state: "starting" | "loading" | "running" | "idle" | "restarting" | "stopped" | "failed";
  pid: number | null;
  device: string | null;
  /** GPUs: UUIDs, or numbers as nvidia-smi counts. */
  devices: string[];
  /** Finished in this session. */
  tokens_done: number;
  samples_done: number;
  batches_done: number;
  /** Tokens of what is now in the engine. */
  tokens_total: number;
  /** Over the last minute; null while nothing was computed. */
  tokens_per_s: number | null;
  restarts: number;
  last_error: string | null;
}

const RATE_OVER_MS = 60_000;

/** An engine's seat over all its lives: brings it up, again after a death, and gives it up when that is no use. */
export class Lane {
  readonly label: string;
  readonly shard: number;
  /** Number of the present (or last) life; 0 before the first. */
  life = 0;
  /** Held by one batch for itself: nothing else is sent. */
  held = false;
  requests = 0;
  tokensOutstanding = 0;
  /** Rows that it alone was to blame for since it last did anything right (retry.ts). */
  culprits: ReadonlySet<number> = new Set();
  /** Known-good rows in a row that it failed. */
  probesFailed = 0;
  readonly done = { tokens: 0, samples: 0, batches: 0 };
  readonly #engine: FleetEngine;
  readonly #options: LaneOptions;
  readonly #rate: { atMs: number; tokens: number }[] = [];
  #state: Exclude<LaneStatus["state"], "idle"> = "starting";
  #up: Engine | null = null;
  #deaths = 0;
  #restarts = 0;
  #lastError: string | null = null;
  #lastStderr: readonly string[] = [];
  #device: string | null = null;
  /** Null until it was first loaded. */
  #devices: string[] | null = null;
  /** Most tokens of a forward: what the present life takes, and what the next one is told; null: its own choice. */
  #forwardTokens: number | null = null;
  #forwardTokensMax: number | null = null;
  #closed = new AbortController();

  /** `before`: the engine's lane in an earlier fleet. What was found out about it holds, what it did counts. */
  constructor(engine: FleetEngine, options: LaneOptions, before: Lane | null) {
    this.label = engine.label;
    this.shard = engine.shard;
    this.#engine = engine;
    this.#options = options;
    this.#device = engine.load.device;
    if (before === null) return;
    Object.assign(this.done, before.done);
    this.#restarts = before.#restarts;
    this.#lastError = before.#lastError;
    this.#lastStderr = before.#lastStderr;
    this.#devices = before.#devices;
    this.#forwardTokensMax = before.#forwardTokensMax;
    if (before.failed) this.#state = "failed";
  }

  /** The engine, loaded and trusted; null while it is not. */
  get up(): Engine | null {
    return this.#up?.usable ? this.#up : null;
  }

  /** Whether it will never be up again. */
  get over(): boolean {
    return this.#state === "failed" || this.#state === "stopped";
  }

  get failed(): boolean {
    return this.#state === "failed";
  }

  get lastError(): string | null {
    return this.#lastError;
  }

  /** The end of its stderr, as it was when it last died. */
  get lastStderr(): readonly string[] {
    return this.#lastStderr;
  }

  /** Room for one more batch: up to `slots`, but two, so that it need not wait while the next one is claimed. */
  get hasRoom(): boolean {
    const slots = this.up?.loaded?.slots;
    if (!slots || this.held) return false;
    if (this.requests === 0) return true;
    return this.requests < slots.batches && (this.requests < 2 || this.tokensOutstanding < slots.tokens);
  }

  /** Resolves with the loaded engine, or null where it was given up or closed. Throws what stops the whole run. */
  async bringUp(): Promise<Engine | null> {
    while (!this.over) {
      if (this.#deaths > 0) await this.#backOff();
      if (this.over) break;
      try {
        return await this.#startAndLoad();
      } catch (error) {
        if (this.over) break;
        if (!(error instanceof EngineError)) throw error;
        if (error.unkillable) this.giveUp(error.brief);
        // A program that is not there and a model that is refused stay so. Where it was well before, only this engine
        // is lost; else what was asked for is wrong, and somebody should see it at once.
        else if (error.retry !== "no" && error.exit !== EXIT.configuration)
          this.died(error.brief, error.stderr);
        else if (this.#devices === null) throw error;
        else this.giveUp(`it was refused when it was started anew: ${error.brief}`);
      }
    }
    return null;
  }

  /** A death that we did not cause. Too many in a row without anything done, and the lane is given up. */
  died(reason: string, stderr: readonly string[]): void {
    this.#deaths += 1;
    this.#lastError = reason;
    this.#lastStderr = stderr;
    this.#up = null;
    if (this.over) return;
    if (this.#deaths >= this.#options.deathsMax) {
      this.giveUp(`it died ${this.#deaths} times in a row; at last: ${reason}`);
    } else {
      this.#restarts += 1;
      this.#enter("restarting");
    }
  }

  /** It was ended on purpose and will be started anew. */
  restarting(): void {
    this.#up = null;
    if (this.over) return;
    this.#restarts += 1;
    this.#enter("restarting");
  }

  /** Stops it for good: it is not believed any more. */
  giveUp(reason: string): void {
    if (this.over) return;
    this.#lastError = reason;
    this.#options.log.error("engine.given-up", { engine: this.label, reason });
    this.#enter("failed");
    this.#closed.abort();
    void this.#up?.kill(reason);
  }

  /** Ends it in an orderly way, at the end of the run; resolves when its child is gone. */
  async close(now: boolean): Promise<void> {
    if (!this.over) this.#enter("stopped");
    const engine = this.#up;
    if (now || !engine) this.#closed.abort();
    if (engine) await (now ? engine.kill() : engine.shutdown());
  }

  /** Rows passed. */
  passed(): void {
    this.#deaths = 0;
    this.probesFailed = 0;
  }

  /**
   * Memory ran out with more than one sample in it: half of what it takes in one forward, from its next life on. Once
   * a life, however many requests failed by it.
   */
  makeSmaller(): void {
    const present = this.#forwardTokens;
    if (present === null || present <= 1 || this.#forwardTokensMax === present >> 1) return;
    this.#forwardTokensMax = present >> 1;
    this.#options.log.warn("engine.smaller", { engine: this.label, forward_tokens: this.#forwardTokensMax });
  }

  progressed(tokens: number): void {
    const atMs = this.#options.clock.nowMs();
    const last = this.#rate.at(-1);
    if (last && atMs - last.atMs < 1000) last.tokens += tokens;
    else this.#rate.push({ atMs, tokens });
    while (this.#rate[0] && this.#rate[0].atMs < atMs - RATE_OVER_MS) this.#rate.shift();
  }

  status(): LaneStatus {
    return {
      shard: this.shard,
      name: this.label,
      state: this.#state === "running" && this.requests === 0 ? "idle" : this.#state,
      pid: this.up?.pid ?? null,
      device: this.#device,
      devices: this.#devices ?? [],
      tokens_done: this.done.tokens,
      samples_done: this.done.samples,
      batches_done: this.done.batches,
      tokens_total: this.tokensOutstanding,
      tokens_per_s: this.#tokensPerSecond(),
      restarts: this.#restarts,
      last_error: this.#lastError,
    };
  }

  async #startAndLoad(): Promise<Engine> {
    const { log, clock, limits, stderrDirectory, shape } = this.#options;
    const { command, load } = this.#engine;
    this.life = this.#options.newLife();
    this.#enter(this.#restarts > 0 ? "restarting" : "starting");
    const engine = await Engine.start({
      command,
      label: this.label,
      log,
      clock,
      limits,
      stderrFile: stderrDirectory === null ? null : join(stderrDirectory, `${this.label}.log`),
      signal: this.#closed.signal,
    });
    this.#device = load.device ?? engine.hello.devices[0]?.name ?? null;
    this.#enter("loading");
    const options = { ...load.options };
    if (this.#forwardTokensMax !== null) options.forward_tokens = this.#forwardTokensMax;
    const loaded = await engine.load({ ...load, options });
    const mismatch = describeMismatch(loaded, load.taps, shape);
    if (mismatch) {
      await engine.kill(mismatch);
      throw new EngineError({
        op: "load model",
        subject: `${this.label}, ${load.model}`,
        message: mismatch,
        hint: "the run was planned for another model: check --model",
        kind: "bad-request",
        retry: "no",
      });
    }
    this.#up = engine;
    this.#devices = loaded.devices ?? [];
    this.#forwardTokens = loaded.forward_tokens ?? loaded.slots.tokens >> 1;
    this.#enter("running");
    log.info("engine.loaded", {
      engine: this.label,
      pid: engine.pid,
      arch: loaded.arch,
      dtype: loaded.dtype,
      kernels: loaded.kernels.join(" "),
      slot_tokens: loaded.slots.tokens,
      slot_batches: loaded.slots.batches,
      forward_tokens: this.#forwardTokens,
    });
    return engine;
  }

  async #backOff(): Promise<void> {
    const { clock, random, restart, log } = this.#options;
    const ms = fullJitterMs(this.#deaths - 1, { ...restart, random });
    log.info("engine.backoff", { engine: this.label, deaths: this.#deaths, seconds: Math.round(ms) / 1000 });
    const { signal } = this.#closed;
    await new Promise<void>((resolve) => {
      const cancel = clock.setTimer(resolve, ms);
      const onAbort = () => {
        cancel();
        resolve();
      };
      signal.addEventListener("abort", onAbort, { once: true });
      if (signal.aborted) onAbort();
    });
  }

  #enter(state: Exclude<LaneStatus["state"], "idle">): void {
    this.#state = state;
    this.#options.onChange(this);
  }

  #tokensPerSecond(): number | null {
    const first = this.#rate[0];
    if (!first) return null;
    const sinceMs = this.#options.clock.nowMs() - first.atMs;
    const tokens = this.#rate.reduce((sum, entry) => sum + entry.tokens, 0);
    return sinceMs >= 1000 ? (tokens / sinceMs) * 1000 : null;
  }
}

function describeMismatch(loaded: Loaded, taps: readonly number[], shape: StatesShape): string | null {
  if (loaded.hidden !== shape.hidden) {
    return `expected a model of hidden size ${shape.hidden}, the engine loaded one of ${loaded.hidden}`;
  }
  const beyond = taps.find((tap) => tap >= loaded.blocks);
  if (beyond !== undefined)
    return `tap ${beyond} is beyond the ${loaded.blocks} blocks that the engine loaded`;
  return null;
}
