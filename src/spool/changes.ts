/** Wakes whoever waits for something to change. */
export class Changes {
  #waiting: (() => void)[] = [];

  /** Resolves at the next `tell`. Rejects with the signal's reason. */
  next(signal?: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const onAbort = () => reject(signal!.reason);
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiting.push(() => {
        signal?.removeEventListener("abort", onAbort);
        resolve();
      });
    });
  }

  tell(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }
}
