import type { Clock } from "./clock.ts";
import { type EngineError, Fault } from "./engine-error.ts";
import type { ExtractAnswer, PendingExtract } from "./pending-extract.ts";
import type { Checked, Loaded } from "./protocol.ts";
import { type EngineLimits, Pace } from "./watchdog.ts";

interface Waiting<Outcome> {
  id: number;
  resolve: (outcome: Outcome) => void;
  reject: (error: EngineError) => void;
  /** When it was sent, became the oldest, or last made progress: what the watchdog counts from. */
  sinceMs: number;
}
interface WaitingLoad extends Waiting<Loaded> {
  kind: "load";
}
interface WaitingCheck extends Waiting<Checked> {
  kind: "check";
  kinds: readonly string[];
}
interface WaitingExtract extends Waiting<ExtractAnswer> {
  kind: "extract";
  pending: PendingExtract;
  onProgress: ((tokensDone: number, tokensTotal: number) => void) | undefined;
}
export type AnyWaiting = WaitingLoad | WaitingCheck | WaitingExtract;

/** Since when a child owes a sign of progress, and how long it may. */
export interface Silence {
  what: string;
  sinceMs: number;
  limitMs: number;
}

/** What one child was asked and has not answered yet, oldest first, and how long it may be silent about it. */
export class Outstanding {
  readonly #clock: Clock;
  readonly #limits: EngineLimits;
  readonly #pace: Pace;
  readonly #waiting = new Map<number, AnyWaiting>();
  #nextId = 1;

  constructor(clock: Clock, limits: EngineLimits) {
    this.#clock = clock;
    this.#limits = limits;
    this.#pace = new Pace(limits);
  }

  newId(): number {
    return this.#nextId++;
  }

  /** It is counted from now. */
  add(waiting: AnyWaiting): void {
    waiting.sinceMs = this.#clock.nowMs();
    this.#waiting.set(waiting.id, waiting);
  }

  /** The request that `answer` is for; null where none is. `kind` null: any; a `Fault` where it is another. */
  find<Kind extends AnyWaiting["kind"]>(answer: { type: string; id: number }, kind: Kind | null) {
    const waiting = this.#waiting.get(answer.id);
    if (!waiting) return null;
    if (kind === null || waiting.kind === kind) return waiting as Extract<AnyWaiting, { kind: Kind }>;
    const found = `found ${answer.type} for it`;
    throw new Fault("wrong-answer", `request ${answer.id} is a ${waiting.kind}, ${found}`);
  }

  /** What is wrong with an answer that no request is found for. */
  faultOf(answer: { type: string; id: number }): Fault {
    const found = `found ${answer.type} for it`;
    return answer.id > 0 && answer.id < this.#nextId
      ? new Fault("answered-twice", `request ${answer.id} was answered already, ${found}`)
      : new Fault("wrong-id", `request ${answer.id} was never sent, ${found}`);
  }

  /** An extract got further by `tokens`. */
  advance(waiting: WaitingExtract, tokens: number): void {
    if (tokens === 0) return;
    this.#pace.did(tokens);
    if (waiting === this.#oldest()) this.#pace.closeInterval(this.#clock.nowMs() - waiting.sinceMs);
    this.stepped(waiting);
  }

  /** It showed that it is being worked on. */
  stepped(waiting: AnyWaiting): void {
    waiting.sinceMs = this.#clock.nowMs();
  }

  /** The request is answered; the next oldest is counted from now, not from when it was sent. */
  close(waiting: AnyWaiting): void {
    const wasOldest = waiting === this.#oldest();
    this.#waiting.delete(waiting.id);
    const oldest = this.#oldest();
    if (wasOldest && oldest) this.stepped(oldest);
  }

  /** The child is gone: all reject. */
  rejectAll(errorOf: (waiting: AnyWaiting) => EngineError): void {
    for (const waiting of this.#waiting.values()) waiting.reject(errorOf(waiting));
    this.#waiting.clear();
  }

  /** Null where nothing is outstanding: an idle child owes nothing. */
  silence(): Silence | null {
    const oldest = this.#oldest();
    if (!oldest) return null;
    const { sinceMs } = oldest;
    switch (oldest.kind) {
      case "load":
        return { what: "it was loading", sinceMs, limitMs: this.#limits.loadMs };
      case "check":
        return { what: "it was silent in a check", sinceMs, limitMs: this.#limits.firstForwardMs };
      case "extract": {
        const limitMs = this.#pace.limitMs(oldest.pending.longestTokens);
        return { what: "it made no progress", sinceMs, limitMs };
      }
    }
  }

  #oldest(): AnyWaiting | undefined {
    return this.#waiting.values().next().value;
  }
}
