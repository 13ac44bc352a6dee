/** Something changed: whoever waits looks again. */
export class Bell {
  #waiting: (() => void)[] = [];

  ring(): void {
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** Resolves at the next ring. Rejects with the signal's reason. */
  wait(signal?: AbortSignal): Promise<void> {
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
}
