import { formatBytes, roundUp } from "../base/bytes.ts";
import { EXIT, RunError } from "../base/errors.ts";

export interface BudgetOptions {
  /** Upper bound on all claims together, each rounded up to whole blocks. */
  budgetBytes: number;
  /** The file system keeps at least this much free. */
  floorBytes: number;
  /** Allocation unit of the file system; a claim is counted in whole blocks. */
  blockBytes: number;
  /** Free bytes of the file system now, for this user. */
  freeBytes: () => Promise<number>;
  /** Monotonic clock. */
  nowMs: () => number;
  /** How often a refusal by the disk (not by the budget) is asked again. Default 1,000. */
  recheckMs?: number;
}

/** Spool bytes held for one file, from before it exists until it is gone. */
export interface Claim {
  /** Rounded up to whole blocks. */
  readonly bytes: number;
  /** The bytes are on the disk now: `statfs` sees them, so they are no longer set aside from its free space. */
  settle(): void;
  /** The file is gone, or was never made. Doing it twice is harmless. */
  release(): void;
}

interface Waiter {
  bytes: number;
  sinceMs: number;
  grant: (claim: Claim) => void;
  cancelled: boolean;
}

/**
 * The spool's ledger: claims are granted first come, first served, and only while
 *   all claims + this one <= budget   and   free disk - what is promised but not yet written - this one >= floor.
 * The sum never exceeds the budget at any instant, except by what `adopt` finds on the disk at a start with a
 * lowered budget: then nothing is granted until that has drained.
 */
export class Budget {
  readonly #options: BudgetOptions;
  readonly #waiters: Waiter[] = [];
  #usedBytes = 0;
  #unwrittenBytes = 0;
  #paused = false;
  #pumping = false;
  #again = false;
  #recheck: NodeJS.Timeout | null = null;
  #waitedMs = 0;
  #waitingSinceMs: number | null = null;
  #refusedByDisk = false;

  constructor(options: BudgetOptions) {
    this.#options = options;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  get budgetBytes(): number {
    return this.#options.budgetBytes;
  }

  /** The first claim in the queue fits the budget, but not the disk. */
  get refusedByDisk(): boolean {
    return this.#refusedByDisk && this.#waiters.length > 0;
  }

  /** Claims now waiting for room, and how long the first of them has waited. */
  waiting(): { count: number; oldestMs: number } {
    const first = this.#waiters[0];
    return { count: this.#waiters.length, oldestMs: first ? this.#options.nowMs() - first.sinceMs : 0 };
  }

  /** Seconds during which at least one claim waited. */
  waitedSeconds(): number {
    const open = this.#waitingSinceMs === null ? 0 : this.#options.nowMs() - this.#waitingSinceMs;
    return (this.#waitedMs + open) / 1000;
  }

  /**
   * Waits its turn for `bytes`. Rejects with the signal's reason when it aborts first, and at once (usage) where
   * the whole budget is too small; then nothing is held.
   */
  acquire(bytes: number, signal?: AbortSignal): Promise<Claim> {
    if (this.#blocks(bytes) > this.#options.budgetBytes) return Promise.reject(this.#tooSmall(bytes));
    return new Promise((resolve, reject) => {
      if (signal?.aborted) return reject(signal.reason);
      const onAbort = () => {
        waiter.cancelled = true;
        const at = this.#waiters.indexOf(waiter);
        if (at >= 0) this.#waiters.splice(at, 1);
        this.#noteWaiting();
        reject(signal!.reason);
        this.#pump();
      };
      const waiter: Waiter = {
        bytes: this.#blocks(bytes),
        sinceMs: this.#options.nowMs(),
        cancelled: false,
        grant: (claim) => {
          signal?.removeEventListener("abort", onAbort);
          resolve(claim);
        },
      };
      signal?.addEventListener("abort", onAbort, { once: true });
      this.#waiters.push(waiter);
      this.#noteWaiting();
      this.#pump();
    });
  }

  /** Counts a file that is already on the disk, whether it fits or not. */
  adopt(bytes: number): Claim {
    const counted = this.#blocks(bytes);
    this.#usedBytes += counted;
    this.#unwrittenBytes += counted;
    const claim = this.#claim(counted);
    claim.settle();
    return claim;
  }

  /** Grants nothing until `resume`. */
  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    this.#paused = false;
    this.#pump();
  }

  /** Stops asking the disk; claims that wait stay unanswered (their signals end them). */
  close(): void {
    this.#paused = true;
    if (this.#recheck) clearTimeout(this.#recheck);
  }

  #tooSmall(bytes: number): RunError {
    return new RunError({
      op: "reserve spool",
      subject: "--spool-bytes",
      message: `a pack of ${formatBytes(bytes)} can never fit the budget of ${formatBytes(this.budgetBytes)}`,
      safe: "nothing was reserved",
      hint: "raise --spool-bytes, or lower --pack-bytes",
      exit: EXIT.usage,
    });
  }

  #fits(bytes: number): boolean {
    return this.#usedBytes + bytes <= this.#options.budgetBytes;
  }

  #blocks(bytes: number): number {
    return roundUp(bytes, this.#options.blockBytes);
  }

  /** Counts the bytes before it asks the disk, so that room under question is never shown as free. */
  async #take(bytes: number): Promise<boolean> {
    this.#usedBytes += bytes;
    this.#unwrittenBytes += bytes;
    // As of before the question: what settles meanwhile may not yet show in the answer.
    const promisedBytes = this.#unwrittenBytes;
    try {
      const free = await this.#options.freeBytes();
      if (free - promisedBytes >= this.#options.floorBytes) return true;
    } catch {
      // A disk that cannot be asked grants nothing; the file call that meets the same fault reports it with its path.
    }
    this.#usedBytes -= bytes;
    this.#unwrittenBytes -= bytes;
    return false;
  }

  #claim(bytes: number): Claim {
    let unwritten = true;
    let held = true;
    const settle = () => {
      if (unwritten) this.#unwrittenBytes -= bytes;
      unwritten = false;
      this.#pump();
    };
    return {
      bytes,
      settle,
      release: () => {
        if (!held) return;
        held = false;
        this.#usedBytes -= bytes;
        settle();
      },
    };
  }

  #pump(): void {
    if (this.#pumping) {
      this.#again = true;
      return;
    }
    this.#pumping = true;
    void this.#grantAll().finally(() => {
      this.#pumping = false;
      if (this.#again) {
        this.#again = false;
        this.#pump();
      }
    });
  }

  async #grantAll(): Promise<void> {
    for (;;) {
      const waiter = this.#waiters[0];
      if (!waiter || this.#paused || !this.#fits(waiter.bytes)) return;
      this.#refusedByDisk = !(await this.#take(waiter.bytes));
      if (this.#refusedByDisk) {
        this.#recheck ??= setTimeout(() => {
          this.#recheck = null;
          this.#pump();
        }, this.#options.recheckMs ?? 1_000).unref();
        return;
      }
      const claim = this.#claim(waiter.bytes);
      if (waiter.cancelled) {
        claim.release();
        continue;
      }
      this.#waiters.shift();
      this.#noteWaiting();
      waiter.grant(claim);
    }
  }

  #noteWaiting(): void {
    const nowMs = this.#options.nowMs();
    if (this.#waitingSinceMs !== null) this.#waitedMs += nowMs - this.#waitingSinceMs;
    this.#waitingSinceMs = this.#waiters.length > 0 ? nowMs : null;
  }
}
