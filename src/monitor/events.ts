import type { LogEvent } from "../base/log.ts";
import type { RunEvent } from "../run/status.ts";

/** The newest events of the run, oldest first: a sink for `makeLog`, and what `events_tail` shows. */
export class EventTail {
  readonly #eventsMax: number;
  readonly #events: RunEvent[] = [];

  constructor(eventsMax = 200) {
    this.#eventsMax = eventsMax;
  }

  /** Bound, so that it can be handed to `makeLog` as it is. Debug events are not for the page. */
  readonly sink = (entry: LogEvent): void => {
    if (entry.level === "debug") return;
    const { at, level, event, ...fields } = entry;
    this.#events.push({ at, level, event, fields });
    if (this.#events.length > this.#eventsMax) this.#events.shift();
  };

  /** The newest `count` events, oldest first. */
  newest(count = 50): RunEvent[] {
    return this.#events.slice(-count);
  }
}
