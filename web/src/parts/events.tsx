import { useSignal } from "@preact/signals";
import type { RunEvent } from "../../../src/run/status.ts";
import { clockSeconds } from "../format.ts";
import { events } from "../live.ts";
import { keyOf } from "../window.ts";
import { Scroll } from "./scroll.tsx";

const SHOWN_MAX = 200;
const LEVELS = ["debug", "info", "warn", "error"] as const;

/** What happened, newest first. */
export function Events() {
  const wanted = useSignal("");
  const level = useSignal<"info" | "warn" | "error">("info");
  const needle = wanted.value.trim().toLowerCase();
  const shown = events.value
    .filter((event) => LEVELS.indexOf(event.level) >= LEVELS.indexOf(level.value))
    .filter((event) => needle === "" || `${event.event} ${fieldText(event)}`.toLowerCase().includes(needle))
    .slice(-SHOWN_MAX)
    .reverse();
  return (
    <section class="panel" aria-labelledby="events-title">
      <div class="panel-head">
        <h2 id="events-title">Events</h2>
        <div class="controls">
          <label>
            <span class="hidden">Filter events by text</span>
            <input
              type="search"
              placeholder="filter"
              value={wanted.value}
              onInput={(event) => {
                wanted.value = event.currentTarget.value;
              }}
            />
          </label>
          <label>
            <span class="hidden">Least level of events shown</span>
            <select
              value={level.value}
              onChange={(event) => {
                level.value = event.currentTarget.value as typeof level.value;
              }}
            >
              <option value="info">all</option>
              <option value="warn">warnings and errors</option>
              <option value="error">errors</option>
            </select>
          </label>
        </div>
      </div>
      <Scroll label="List of events" tall>
        <ul class="events">
          {shown.map((event) => (
            <li key={keyOf(event)} class={`event ${event.level}`}>
              <time dateTime={event.at}>{clockSeconds(event.at)}</time>{" "}
              {event.level !== "info" && <span class="level">{event.level}</span>}{" "}
              <b>
                <bdi>{event.event}</bdi>
              </b>{" "}
              <bdi class="fields">{fieldText(event)}</bdi>
            </li>
          ))}
          {shown.length === 0 && (
            <li class="quiet">
              {events.value.length === 0 ? "Nothing has happened yet." : "No event matches."}
            </li>
          )}
        </ul>
      </Scroll>
    </section>
  );
}

function fieldText({ fields }: RunEvent): string {
  return Object.entries(fields)
    .map(([name, value]) => `${name}=${String(value)}`)
    .join("  ");
}
