/** How long an engine may be silent, in ms. `docs/engine-protocol.md`, "Time limits". */
export interface EngineLimits {
  /** From start to `hello`, and from `load` to `loaded`. Several children may read 55 GB from a network disk. */
  loadMs: number;
  /** The first forward of an engine may compile and tune kernels. A `check` has this limit too. */
  firstForwardMs: number;
  /** No forward is given less than this. */
  forwardFloorMs: number;
  /** Times the running median of what a forward takes. */
  forwardFactor: number;
  /** Between asking a child to end, SIGTERM, and SIGKILL. */
  stopGraceMs: number;
  /** After SIGKILL: what still lives then waits in a driver or on a disk, and is not waited for. */
  unkillableMs: number;
}

export const DEFAULT_LIMITS: EngineLimits = {
  loadMs: 30 * 60_000,
  firstForwardMs: 15 * 60_000,
  forwardFloorMs: 60_000,
  forwardFactor: 20,
  stopGraceMs: 10_000,
  unkillableMs: 30_000,
};

/** All limits of an engine that is given `floorMs` for a forward at least, in the defaults' proportions. */
export function limitsOf(floorMs: number): Partial<EngineLimits> {
  const scale = floorMs / DEFAULT_LIMITS.forwardFloorMs;
  const { loadMs, firstForwardMs } = DEFAULT_LIMITS;
  return { loadMs: loadMs * scale, firstForwardMs: firstForwardMs * scale, forwardFloorMs: floorMs };
}

const MEDIAN_OVER = 31;

/**
 * How long the oldest outstanding request may go without progress, from the pace seen so far. Pure bookkeeping:
 * the engine says what happened, and asks. An interval is the time between two signs of progress of the OLDEST
 * request, with the tokens of all requests in it, because one forward may serve several requests.
 */
export class Pace {
  readonly #limits: EngineLimits;
  readonly #msPerToken: number[] = [];
  readonly #forwardTokens: number[] = [];
  #tokens = 0;

  constructor(limits: EngineLimits) {
    this.#limits = limits;
  }

  /** Tokens that some request reported. */
  did(tokens: number): void {
    this.#tokens += tokens;
  }

  /** The oldest request made progress, `ms` after it last did. */
  closeInterval(ms: number): void {
    if (this.#tokens === 0) return;
    keepLast(this.#msPerToken, ms / this.#tokens);
    keepLast(this.#forwardTokens, this.#tokens);
    this.#tokens = 0;
  }

  /** `longestTokens`: of the longest outstanding sample, which some forward must hold whole. */
  limitMs(longestTokens: number): number {
    const { firstForwardMs, forwardFloorMs, forwardFactor } = this.#limits;
    if (this.#msPerToken.length === 0) return firstForwardMs;
    const tokens = Math.max(longestTokens, ...this.#forwardTokens);
    return Math.max(forwardFloorMs, forwardFactor * median(this.#msPerToken) * tokens);
  }
}

function keepLast(values: number[], value: number): void {
  values.push(value);
  if (values.length > MEDIAN_OVER) values.shift();
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1]!;
}
