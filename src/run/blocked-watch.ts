import { EXIT, RunError } from "../base/errors.ts";
import type { StatusBoard } from "./status-board.ts";

export interface BlockedWatchOptions {
  board: StatusBoard;
  address: string;
  /** `--max-blocked`; null: for ever. */
  blockedMsMax: number | null;
  giveUp: (error: RunError) => void;
}

/** Shows that the run waits for somebody, and gives up (exit 75) when it has waited long enough. */
export class BlockedWatch {
  readonly #options: BlockedWatchOptions;
  #timer: NodeJS.Timeout | null = null;

  constructor(options: BlockedWatchOptions) {
    this.#options = options;
  }

  /** Blocked, or still blocked for another reason: the time counts from the first. */
  enter(reason: string, action: string): void {
    const { board, address, blockedMsMax, giveUp } = this.#options;
    board.blocked({ reason, action });
    if (blockedMsMax === null) return;
    this.#timer ??= setTimeout(() => {
      giveUp(
        new RunError({
          op: "wait for the store",
          subject: address,
          message: `blocked for ${Math.round(blockedMsMax / 1000)} s (--max-blocked): ${reason}`,
          safe: "packs in the spool and in the store are kept",
          hint: `${action}; then run the same command again`,
          exit: EXIT.retryLater,
        }),
      );
    }, blockedMsMax);
  }

  leave(): void {
    this.#options.board.blocked(null);
    if (this.#timer) clearTimeout(this.#timer);
    this.#timer = null;
  }
}
