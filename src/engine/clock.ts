/** Time as parts are handed it, so that a test can wind it by hand. */
export interface Clock {
  /** Monotonic milliseconds. */
  nowMs(): number;
  /** Calls back once after `ms`, and returns what cancels it. */
  setTimer(callback: () => void, ms: number): () => void;
}

export const realClock: Clock = {
  nowMs: () => performance.now(),
  setTimer: (callback, ms) => {
    const timer = setTimeout(callback, ms);
    return () => clearTimeout(timer);
  },
};
