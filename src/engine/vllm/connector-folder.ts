import { fileTrouble } from "./failure.ts";
import { requestIds, sweepOrphans } from "./orphans.ts";
import { freeBytes } from "./server.ts";

/** Of the folder's free bytes, what is counted on; others may write there. */
const ROOM_SHARE = 0.9;

/** One request whose file is to come. */
export interface Expected {
  requestId: string;
  /** It is there: what it takes is not free any more. */
  hasCome(): void;
  /** Nobody waits for it any more. */
  close(): void;
}

/** The folder that a server's connector writes into: the files to come, the room for them, and what nobody waits for. */
export class ConnectorFolder {
  readonly #pid: number;
  readonly #newRequestId: () => string;
  /** Request ids whose files somebody waits for. */
  readonly #open = new Set<string>();
  #comingBytes = 0;
  /** Null until the server has named a file in it. */
  #path: string | null = null;

  /** `pid`: of this process, which its requests carry. */
  constructor(pid: number) {
    this.#pid = pid;
    this.#newRequestId = requestIds(pid);
  }

  /** Where it is; the first word stands. */
  found(path: string): void {
    this.#path ??= path;
  }

  get openRequests(): number {
    return this.#open.size;
  }

  /** Whether a file of `bytes` fits beside those to come, in the part that one of `sharers` engines counts on. */
  hasRoom(bytes: number, sharers: number): boolean {
    const free = this.#free();
    return free === null || this.#comingBytes + bytes <= (ROOM_SHARE / sharers) * free;
  }

  /** Throws a VllmError where nothing else is open, and still a file of `bytes` does not fit: no waiting helps. */
  expect(bytes: number): Expected {
    const free = this.#open.size > 0 ? null : this.#free();
    if (free !== null && bytes > free) {
      throw fileTrouble(
        `the states take ${bytes} bytes, the connector's folder ${this.#path} has ${free} free: give it more (a container: --shm-size=8g)`,
      );
    }
    const requestId = this.#newRequestId();
    this.#open.add(requestId);
    this.#comingBytes += bytes;
    let isComing = true;
    const hasCome = () => {
      if (isComing) this.#comingBytes -= bytes;
      isComing = false;
    };
    const close = () => {
      hasCome();
      this.#open.delete(requestId);
    };
    return { requestId, hasCome, close };
  }

  /** Removes what nobody waits for; `isOver`: of this process's requests none is waited for. */
  sweep(isOver: boolean): void {
    if (this.#path !== null) sweepOrphans(this.#path, this.#pid, (id) => !isOver && this.#open.has(id));
  }

  #free(): number | null {
    return this.#path === null ? null : freeBytes(this.#path);
  }
}
