import { EXIT, RunError } from "../base/errors.ts";
import { UPLOADS_MAX } from "../base/limits.ts";

/** Connections: found by trying, or so many. */
export type Uploads = "auto" | number;

/** A fast link is full with a few, and a long one is found within seconds: the quick start doubles. */
const UPLOADS_START = 4;

export interface LimiterOptions {
  /** Where it begins. */
  start: number;
  max: number;
  /**
   * true: finds its number, climbing only while goodput rises. false: `start` was asked for by a person: the
   * limiter only backs off from it when throttled, and climbs back.
   */
  auto: boolean;
  /** Length of one observation. Default 1,000. */
  windowMs?: number;
}

interface Window {
  sinceMs: number;
  bytes: number;
  completions: number;
  /** Whether the limit, and nothing else, held work back at some moment. */
  limited: boolean;
}

/**
 * How many connections to use: additive increase, multiplicative decrease, with a quick start, as TCP has it.
 * It climbs while goodput rises and work waits, halves when the store throttles, and settles where one more
 * connection brings nothing; a settled limiter tries a step again after `HOLD_WINDOWS`, since links change.
 * Pure: the caller's clock, no timers. One observation lasts a window and at least as many completions as there
 * are connections, so that one slow pack does not look like a slow link.
 */
export class Limiter {
  #options: Required<LimiterOptions>;
  #limit: number;
  #fast = true;
  #hold = 0;
  #before: { limit: number; rate: number } | null = null;
  #window: Window | null = null;
  #quietUntilMs = 0;

  constructor(options: LimiterOptions) {
    this.#options = { windowMs: 1_000, ...options };
    this.#limit = clamp(options.start, options.max);
  }

  get limit(): number {
    return this.#limit;
  }

  /** `limited`: there was work to start and only the limit held it back. */
  observe(nowMs: number, limited: boolean): void {
    this.#window ??= { sinceMs: nowMs, bytes: 0, completions: 0, limited: false };
    this.#window.limited ||= limited;
  }

  /** `bytes` reached the store and were verified. */
  completed(nowMs: number, bytes: number): void {
    this.observe(nowMs, false);
    const window = this.#window!;
    window.bytes += bytes;
    window.completions += 1;
    const elapsedMs = nowMs - window.sinceMs;
    if (elapsedMs < this.#options.windowMs || window.completions < this.#limit) return;
    this.#window = null;
    if (window.limited) this.#decide(window.bytes / (elapsedMs / 1_000));
  }

  /** The store asked for less. Several answers of one burst count once. */
  throttled(nowMs: number): void {
    if (nowMs < this.#quietUntilMs) return;
    this.#quietUntilMs = nowMs + this.#options.windowMs;
    this.#limit = Math.max(1, Math.floor(this.#limit / 2));
    this.#fast = false;
    this.#hold = this.#options.auto ? HOLD_WINDOWS : 2;
    this.#before = null;
    this.#window = null;
  }

  #decide(rate: number): void {
    if (this.#hold > 0) {
      this.#hold -= 1;
      return;
    }
    const before = this.#before;
    if (this.#options.auto && before && rate < before.rate * RISE_WORTH_IT) {
      // The last step up brought nothing: go back to where it was as good with fewer.
      this.#limit = before.limit;
      this.#fast = false;
      this.#hold = HOLD_WINDOWS;
      this.#before = null;
      return;
    }
    this.#before = { limit: this.#limit, rate };
    const step = this.#fast ? this.#limit : Math.max(1, Math.round(this.#limit * 0.1));
    this.#limit = clamp(this.#limit + step, this.#options.max);
  }
}

/** A step that brings less than 5 % is not worth its connections. */
const RISE_WORTH_IT = 1.05;
const HOLD_WINDOWS = 10;

function clamp(limit: number, max: number): number {
  return Math.max(1, Math.min(max, Math.floor(limit)));
}

/** `limitNow`: what a living run has found out so far. */
export function limiterFor(uploads: Uploads, limitNow?: number): Limiter {
  return uploads === "auto"
    ? new Limiter({ auto: true, start: limitNow ?? UPLOADS_START, max: UPLOADS_MAX })
    : new Limiter({ auto: false, start: uploads, max: uploads });
}

/** Throws (usage) for a number out of range. */
export function checkUploads(uploads: Uploads): Uploads {
  if (uploads === "auto" || (Number.isInteger(uploads) && uploads >= 1 && uploads <= UPLOADS_MAX))
    return uploads;
  throw new RunError({
    op: "read setting",
    subject: "uploads",
    message: `expected "auto" or a whole number from 1 to ${UPLOADS_MAX}, found ${uploads}`,
    exit: EXIT.usage,
  });
}
