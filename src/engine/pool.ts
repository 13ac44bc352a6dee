import { rm } from "node:fs/promises";
import { Bell } from "../base/bell.ts";
import { RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import { Stage } from "../base/stage.ts";
import { readStatesBytes } from "./canary.ts";
import { refusedRows, type StatesShape } from "./check-states.ts";
import type { Clock } from "./clock.ts";
import type { Engine } from "./engine.ts";
import { EngineError } from "./engine-error.ts";
import { type FleetEngine, Lane, type LaneOptions } from "./lane.ts";
import type { ExtractSample } from "./protocol.ts";
import { nextCulprits, type Trial, type Where, wasTooMuch } from "./retry.ts";
import { makeScratch } from "./scratch.ts";

export interface PoolOptions extends Omit<LaneOptions, "newLife" | "onChange"> {
  engines: readonly FleetEngine[];
  /** The pool of an earlier fleet of the same engines. */
  before: EnginePool | null;
  scratchDirectory: string;
  culpritsMax: number;
  /** Throws once the fleet is stopping: nobody waits for an engine any more. */
  throwIfStopping: () => void;
}

/** A known-good row that fails in an engine twice, the second time right after its start, condemns it. */
const PROBES_FAILED_MAX = 2;

/** The engines of a fleet: who is up, who is held by one batch for itself, who is not believed any more. */
export class EnginePool {
  readonly lanes: readonly Lane[];
  /** Rings at every change that somebody may wait for. */
  readonly bell = new Bell();
  /** Busy: has requests. Starved: starting or loading. Blocked: up, and given no batch. */
  readonly stage: Stage;
  readonly discredited = new Set<string>();
  /** The shortest row that has passed; what a fresh engine is proven with. */
  knownGood: ExtractSample | null = null;
  readonly #options: PoolOptions;
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #shape: StatesShape;
  #lives = 0;

  constructor(options: PoolOptions) {
    this.#options = options;
    this.#log = options.log;
    this.#clock = options.clock;
    this.#shape = options.shape;
    this.stage = new Stage("compute", () => this.#clock.nowMs());
    const newLife = () => {
      this.#lives += 1;
      return this.#lives;
    };
    const onChange = (lane: Lane) => this.account(lane);
    this.knownGood = options.before?.knownGood ?? null;
    this.lanes = options.engines.map((engine) => {
      const before = options.before?.lanes.find(({ label }) => label === engine.label) ?? null;
      return new Lane(engine, { ...options, newLife, onChange }, before);
    });
  }

  /** Child processes started so far, over all engines: the number of the newest life. */
  get lives(): number {
    return this.#lives;
  }

  /** Books what `lane` does from now on. */
  account(lane: Lane): void {
    if (lane.over) this.stage.remove(lane.label);
    else if (lane.requests > 0) this.stage.enter(lane.label, "busy");
    else this.stage.enter(lane.label, lane.up ? "blocked" : "starved");
    this.bell.ring();
  }

  /** Stops an engine for good; what it said does not count. */
  discredit(lane: Lane, reason: string): void {
    this.discredited.add(lane.label);
    lane.giveUp(reason);
    this.bell.ring();
  }

  /** Sends a request, with the books kept. The engine must be up. */
  async ask(lane: Lane, request: Parameters<Engine["extract"]>[0]): ReturnType<Engine["extract"]> {
    const tokens = request.samples.reduce((sum, { ids }) => sum + ids.length, 0);
    let before = 0;
    const progressed = (tokensDone: number) => {
      lane.progressed(tokensDone - before);
      before = tokensDone;
    };
    lane.requests += 1;
    lane.tokensOutstanding += tokens;
    this.account(lane);
    try {
      const answer = await lane.up!.extract(request, progressed);
      progressed(tokens);
      return answer;
    } finally {
      lane.requests -= 1;
      lane.tokensOutstanding -= tokens;
      this.account(lane);
    }
  }

  /** What a trial says about the engine it was made in. */
  judge(lane: Lane, trial: Trial, died: boolean): void {
    const { failures, passed } = trial;
    if (passed.length > 0) lane.passed();
    if (wasTooMuch(trial)) lane.makeSmaller();
    lane.culprits = nextCulprits(lane.culprits, trial, died);
    if (lane.culprits.size >= this.#options.culpritsMax) {
      this.discredit(lane, `it failed ${lane.culprits.size} rows in a row: ${failures[0]?.reason}`);
    }
  }

  rememberGood(samples: readonly ExtractSample[]): void {
    for (const sample of samples) {
      if (!this.knownGood || sample.ids.length < this.knownGood.ids.length) this.knownGood = sample;
    }
  }

  /**
   * Whether the known-good row passes in this engine; one that fails it is started anew, and then given up. Throws as
   * `makeScratch` does.
   */
  async probe(lane: Lane): Promise<boolean> {
    const sample = { ...this.knownGood!, offset: 0 };
    const bytes = sample.ids.length * this.#shape.taps * this.#shape.hidden * 2;
    const file = await makeScratch(this.#options.scratchDirectory, `probe-${lane.label}`, bytes);
    if (!lane.up) return false;
    let reason: string;
    try {
      const answer = await this.ask(lane, { attempt: 1, file, samples: [sample] });
      const refused = refusedRows([sample], answer.samples, this.#shape)[0];
      if (!refused) return true;
      reason = answer.failed[0]?.message ?? refused.reason;
      lane.probesFailed += 1;
      if (lane.probesFailed < PROBES_FAILED_MAX) await lane.up?.shutdown();
    } catch (error) {
      // Its death counts by itself.
      if (!(error instanceof EngineError)) throw error;
      reason = error.brief;
    }
    this.#options.throwIfStopping();
    this.#log.warn("engine.probe-failed", { engine: lane.label, row: sample.row, reason });
    if (lane.probesFailed >= PROBES_FAILED_MAX) {
      this.discredit(lane, `it fails row ${sample.row}, which passed before: ${reason}`);
    }
    return false;
  }

  /** The states of a sample that passed before, computed again; null where that failed, which counts elsewhere. */
  async recompute(lane: Lane, sample: ExtractSample): Promise<Buffer | null> {
    const bytes = sample.ids.length * this.#shape.taps * this.#shape.hidden * 2;
    const name = `canary-${lane.label}-${sample.row}`;
    let file: string | null = null;
    try {
      file = await makeScratch(this.#options.scratchDirectory, name, bytes);
      // It may have died meanwhile, or be held by a batch that wants it for itself.
      if (!lane.up || lane.held) return null;
      const alone = { ...sample, offset: 0 };
      const answer = await this.ask(lane, { attempt: 1, file, samples: [alone] });
      if (refusedRows([alone], answer.samples, this.#shape).length > 0) return null;
      return await readStatesBytes(file, 0, bytes);
    } catch (error) {
      if (error instanceof EngineError) return null;
      if (error instanceof RunError && error.remedy === "retry") return null;
      throw error;
    } finally {
      if (file) await rm(file, { force: true });
    }
  }

  /** Resolves with an engine that has room for a batch among others: `preferred` if it has. */
  async free(preferred: Lane): Promise<Lane> {
    for (;;) {
      const lane = [preferred, ...this.lanes].find((one) => one.up && one.hasRoom);
      if (lane) return lane;
      this.#options.throwIfStopping();
      await this.bell.wait();
    }
  }

  /**
   * Resolves with an engine that is up, as `where` wants it, empty, and held: nothing else is sent to it until
   * `release`. Restarts one where that is the only way to a fresh one.
   */
  async hold(where: Where, livesStarted: number): Promise<Lane> {
    for (;;) {
      this.#options.throwIfStopping();
      const wanted = this.#asFound(where, livesStarted);
      const lane = this.#choose(wanted);
      if (!lane) {
        await this.bell.wait();
        continue;
      }
      lane.held = true;
      let isHeld = false;
      try {
        isHeld = await this.#clear(lane, wanted);
        if (isHeld) return lane;
      } finally {
        if (!isHeld) this.release(lane);
      }
    }
  }

  release(lane: Lane): void {
    lane.held = false;
    this.bell.ring();
  }

  /** "Another living engine, else a fresh one": which of the two it is, is decided by what lives now. */
  #asFound(where: Where, livesStarted: number): Where {
    if (where.kind !== "other") return where;
    if (this.lanes.some((lane) => lane.up && isFit(lane, where))) return where;
    return { kind: "fresh", afterLife: livesStarted, notLives: [] };
  }

  /** Fit as it is, else coming up, else to be started anew; of the best kind the least busy. Null: all held. */
  #choose(wanted: Where): Lane | null {
    const able = this.lanes.filter((lane) => !lane.over && (wanted.kind !== "other" || isFit(lane, wanted)));
    const need = (lane: Lane) => (lane.up ? (isFit(lane, wanted) ? 0 : 2) : 1);
    const least = Math.min(...able.map(need));
    const best = able.filter((lane) => !lane.held && need(lane) === least);
    return best.sort((a, b) => a.tokensOutstanding - b.tokensOutstanding)[0] ?? null;
  }

  /** Waits until a held engine is empty, up and fit. False: it was given up meanwhile. */
  async #clear(lane: Lane, wanted: Where): Promise<boolean> {
    for (;;) {
      this.#options.throwIfStopping();
      if (lane.over) return false;
      const engine = lane.up;
      if (!engine || lane.requests > 0) {
        await this.bell.wait();
      } else if (isFit(lane, wanted)) {
        return true;
      } else {
        this.#log.info("engine.restart-fresh", { engine: lane.label, life: lane.life });
        await engine.shutdown();
      }
    }
  }
}

function isFit(lane: Lane, where: Where): boolean {
  switch (where.kind) {
    case "any":
      return true;
    case "other":
      return !where.not.includes(lane.label);
    case "fresh":
      return lane.life > where.afterLife && !where.notLives.includes(lane.life);
  }
}
