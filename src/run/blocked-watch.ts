import { EXIT, RunError } from "../base/errors.ts";
import type { StatusBoard } from "./status-board.ts";

export interface BlockedWatchOptions {
  board: StatusBoard;
  address: string;
  /** `--max-blocked`; null: for ever. */
  blockedMsMax: number | null;
  giveUp: (error: RunError) => void;
}

interface Cause {
  reason: string;
  action: string;
}

/** Shows that the run waits for somebody, and gives up (exit 75) when it has waited long enough. */
export class BlockedWatch {
  readonly #options: BlockedWatchOptions;
  #store: Cause | null = null;
  #disk: Cause | null = null;
  #timer: NodeJS.Timeout | null = null;

  constructor(options: BlockedWatchOptions) {
    this.#options = options;
  }

  /** What the store needs; null: it serves again. The time counts from the first cause, whichever follows it. */
  store(cause: Cause | null): void {
    this.#store = cause;
    this.#tell();
  }

  /** Why the spool gives out no room, or null. */
  disk(reason: string | null): void {
    this.#disk = reason === null ? null : { reason, action: "free disk space: the run goes on by itself" };
    this.#tell();
  }

  close(): void {
    this.#store = null;
    this.#disk = null;
    this.#tell();
  }

  #tell(): void {
    const { board, blockedMsMax } = this.#options;
    const cause = this.#store ?? this.#disk;
    board.blocked(cause);
    if (!cause) {
      if (this.#timer) clearTimeout(this.#timer);
      this.#timer = null;
    } else if (blockedMsMax !== null) {
      this.#timer ??= setTimeout(() => this.#giveUp(blockedMsMax), blockedMsMax);
    }
  }

  #giveUp(blockedMs: number): void {
    const { address, giveUp } = this.#options;
    const { reason, action } = (this.#store ?? this.#disk)!;
    giveUp(
      new RunError({
        op: this.#store ? "wait for the store" : "wait for the disk",
        subject: address,
        message: `blocked for ${Math.round(blockedMs / 1000)} s (--max-blocked): ${reason}`,
        safe: "packs in the spool and in the store are kept",
        hint: `${action}; then run the same command again`,
        exit: EXIT.retryLater,
      }),
    );
  }
}
