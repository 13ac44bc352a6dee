/**
 * Runs `work` over `items`, `parallel` at a time, in order of their start. After a failure nothing new is started;
 * what runs is waited for, and then the first failure is thrown.
 */
export async function eachOf<T>(
  items: Iterable<T>,
  parallel: number,
  work: (item: T) => Promise<void>,
): Promise<void> {
  const queue = items[Symbol.iterator]();
  let failed = false;
  const lane = async () => {
    for (let next = queue.next(); !next.done && !failed; next = queue.next()) {
      try {
        await work(next.value);
      } catch (error) {
        failed = true;
        throw error;
      }
    }
  };
  for (const outcome of await Promise.allSettled(Array.from({ length: parallel }, lane))) {
    if (outcome.status === "rejected") throw outcome.reason;
  }
}
