import type { ServerResponse } from "node:http";
import { setImmediate as nextTurn } from "node:timers/promises";

export interface StreamLimits {
  /** Open streams; one more closes the oldest, so idle ones cannot keep a person out. Default 256. */
  clientsMax?: number;
  /** Snapshots a client may leave unread before it is dropped. Default 15. */
  missedMax?: number;
}

/** Clients written to before the event loop may do something else: a request waits for so many at most. */
const CLIENTS_A_TURN = 8;

/**
 * Server-sent events: the same bytes to every client. A snapshot replaces the one before it, so a slow client
 * is not sent the next until it has taken the last: it costs one snapshot of memory, shared with all others.
 */
export class SnapshotStream {
  readonly #clientsMax: number;
  readonly #missedMax: number;
  /** Insertion order is age. The number counts snapshots the client did not take. */
  readonly #clients = new Map<ServerResponse, number>();
  #sending = false;

  constructor({ clientsMax = 256, missedMax = 15 }: StreamLimits = {}) {
    this.#clientsMax = clientsMax;
    this.#missedMax = missedMax;
  }

  get clients(): number {
    return this.#clients.size;
  }

  /** Begins the stream with `first`; headers are the caller's, already set. */
  add(client: ServerResponse, first: Buffer): void {
    if (this.#clients.size >= this.#clientsMax) {
      for (const oldest of this.#clients.keys()) {
        this.#drop(oldest);
        break;
      }
    }
    this.#clients.set(client, 0);
    client.on("close", () => this.#clients.delete(client));
    client.on("error", () => this.#drop(client));
    client.write(first);
  }

  /** Sends `frame` to all, a few a turn of the event loop; skipped while the last is still being sent. */
  async send(frame: Buffer): Promise<void> {
    if (this.#sending) return;
    this.#sending = true;
    let sent = 0;
    for (const [client, missed] of [...this.#clients]) {
      if (!this.#clients.has(client)) continue;
      if (client.writableLength === 0) {
        client.write(frame);
        if (missed > 0) this.#clients.set(client, 0);
      } else if (missed + 1 >= this.#missedMax) {
        this.#drop(client);
      } else {
        this.#clients.set(client, missed + 1);
      }
      sent += 1;
      if (sent % CLIENTS_A_TURN === 0) await nextTurn();
    }
    this.#sending = false;
  }

  /** Ends each stream with `last`, also one that has not taken all before it. */
  close(last: Buffer): void {
    const clients = [...this.#clients.keys()];
    this.#clients.clear();
    for (const client of clients) client.end(last);
  }

  #drop(client: ServerResponse): void {
    this.#clients.delete(client);
    client.destroy();
  }
}

/** A snapshot as one event. JSON holds no line breaks, so one data line is enough. */
export function snapshotFrame(json: Buffer): Buffer {
  return Buffer.concat([Buffer.from("retry: 1000\nevent: status\ndata: "), json, Buffer.from("\n\n")]);
}

/** A comment: keeps tunnels open, and tells a reader without snapshots that the server lives. */
export const HEARTBEAT_FRAME = Buffer.from(": alive\n\n");
