import { Worker } from "node:worker_threads";
import { describeError, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { FromMonitorThread, MonitorThreadData, ToMonitorThread } from "./monitor-worker.ts";
import type { Published } from "./server.ts";

export interface MonitorOptions extends MonitorThreadData {
  log: Log;
  /** The thread's entry; for tests that need it to die. */
  threadUrl?: URL;
}

export interface Monitor {
  /** "http://127.0.0.1:8080" */
  url: string;
  port: number;
  /** Takes no time worth speaking of; of several while the thread is busy only the newest is shown. */
  publish(now: Published): void;
  /** Shows `last` to whoever still looks, writes it down, and ends; resolves when the port is free. */
  close(last: Published): Promise<void>;
}

const RESTART_MS = 1_000;
const RESTARTS_MAX = 5;

/**
 * Starts the monitor in a thread of its own, where it answers whatever this one does. Throws a RunError where the port
 * cannot be had. A thread that dies later is started anew on its port; that costs the page a moment and the run nothing.
 */
export async function startMonitor(options: MonitorOptions): Promise<Monitor> {
  const { log } = options;
  let newest = options.first;
  let restarts = 0;
  let isClosing = false;
  let thread: MonitorThread | null = await MonitorThread.open(options);
  const { url, port } = thread;

  const watch = (opened: MonitorThread) => {
    thread = opened;
    void opened.ended.then((reason) => {
      thread = null;
      if (isClosing) return;
      log.error("monitor.ended", { reason });
      if (restarts < RESTARTS_MAX) setTimeout(restart, RESTART_MS).unref();
      restarts += 1;
    });
  };
  const restart = () => {
    if (isClosing) return;
    MonitorThread.open({ ...options, first: newest, port, nextFreePort: false }).then(
      (opened) => (isClosing ? void opened.close(newest) : watch(opened)),
      (error: unknown) => log.error("monitor.gone", { reason: describeError(error) }),
    );
  };
  watch(thread);

  return {
    url,
    port,
    publish: (now) => {
      newest = now;
      thread?.publish(now);
    },
    close: async (last) => {
      isClosing = true;
      await thread?.close(last);
    },
  };
}

/** One life of the thread. */
class MonitorThread {
  url = "";
  port = 0;
  /** Why it ended. */
  readonly ended: Promise<string>;
  readonly #worker: Worker;
  #waiting: Published | null = null;
  #isBusy = false;

  private constructor(options: MonitorOptions) {
    const { log, threadUrl, ...data } = options;
    this.#worker = new Worker(threadUrl ?? new URL("./monitor-worker.js", import.meta.url), {
      // What the program was started with (--input-type, --test) is not for a thread.
      execArgv: [],
      workerData: data satisfies MonitorThreadData,
    });
    let reason = "it ended by itself";
    this.#worker.on("error", (error) => {
      reason = describeError(error);
    });
    this.ended = new Promise((resolve) => this.#worker.on("exit", () => resolve(reason)));
    this.#worker.on("message", (message: FromMonitorThread) => {
      if (message.kind === "log") log[message.level](message.event, message.fields);
      if (message.kind === "taken") this.#taken();
    });
  }

  /** Resolves when it listens. */
  static async open(options: MonitorOptions): Promise<MonitorThread> {
    const thread = new MonitorThread(options);
    const answered = new Promise<FromMonitorThread>((resolve) => {
      thread.#worker.on("message", (message: FromMonitorThread) => {
        if (message.kind === "listening" || message.kind === "refused") resolve(message);
      });
    });
    const answer = await Promise.race([answered, thread.ended]);
    if (typeof answer === "string")
      throw new Error(`the monitor's thread ended before it listened: ${answer}`);
    if (answer.kind === "refused") throw new RunError(answer.error);
    if (answer.kind === "listening") Object.assign(thread, { url: answer.url, port: answer.port });
    return thread;
  }

  /** Structured clones of a document that nobody takes would pile up: one at a time. */
  publish(now: Published): void {
    if (this.#isBusy) {
      this.#waiting = now;
      return;
    }
    this.#isBusy = true;
    this.#send({ kind: "publish", published: now });
  }

  async close(last: Published): Promise<void> {
    this.#send({ kind: "close", last });
    await this.ended;
  }

  #taken(): void {
    this.#isBusy = false;
    const waiting = this.#waiting;
    this.#waiting = null;
    if (waiting) this.publish(waiting);
  }

  #send(message: ToMonitorThread): void {
    this.#worker.postMessage(message);
  }
}
