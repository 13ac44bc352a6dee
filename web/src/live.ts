import { computed, signal } from "@preact/signals";
import { plainText } from "../../src/base/log.ts";
import { History, type HistoryColumns, historyPoint, pointsOf } from "../../src/monitor/history.ts";
import type { RunEvent, StatusDocument } from "../../src/run/status.ts";
import { isOver } from "./tone.ts";
import { mergeEvents, type StageWindow, stageWindow } from "./window.ts";

/** The newest document; null before the first. */
export const status = signal<StatusDocument | null>(null);
/** Events of the whole visit, oldest first: the document holds only the newest. */
export const events = signal<RunEvent[]>([]);
/** Goes up with each new point of `history`. */
export const historyVersion = signal(0);
export const history = new History();
/** This machine's clock, once a half second. */
export const nowMs = signal(Date.now());

/** When the newest document that was really new came in, by this machine's clock: two clocks are never compared. */
const freshAtMs = signal<number | null>(null);
export const ageS = computed(() =>
  freshAtMs.value === null ? null : Math.max(0, (nowMs.value - freshAtMs.value) / 1_000),
);
/** Dimmed above the first, a banner above the second. */
const STALE_S = 3;
const LOST_S = 15;
export const freshness = computed(() => {
  // An ended run has nothing newer to say.
  if (status.value && isOver(status.value.run.state)) return "final";
  const age = ageS.value;
  if (age === null) return "waiting";
  return age > LOST_S ? "lost" : age > STALE_S ? "stale" : "fresh";
});

/** Shares of each stage's time over the last half minute; of the session until that much was seen. */
export const stages = signal<StageWindow[]>([]);

const recent: StatusDocument[] = [];
const RECENT_S = 30;
const EVENTS_MAX = 500;
const RECONNECT_MS = 1_500;

/** Follows the run for as long as the page is open, over restarts of the supervisor. */
export function follow(): void {
  setInterval(() => {
    nowMs.value = Date.now();
  }, 500);
  connect();
}

function connect(): void {
  const stream = new EventSource("/api/events");
  stream.addEventListener("open", () => void loadHistory());
  stream.addEventListener("status", ({ data }) => take(parse(String(data))));
  stream.addEventListener("error", () => {
    // The browser tries again by itself after a lost connection, but not after an answer it did not like.
    if (stream.readyState !== EventSource.CLOSED) return;
    stream.close();
    setTimeout(connect, RECONNECT_MS);
  });
}

/** Whatever an engine, a row or a server put into a string arrives here as plain text. */
function parse(json: string): StatusDocument {
  return JSON.parse(json, (_, value) => (typeof value === "string" ? plainText(value) : value));
}

function take(document: StatusDocument): void {
  const previous = status.value;
  if (previous && previous.generated_at === document.generated_at) return;
  nowMs.value = Date.now();
  freshAtMs.value = nowMs.value;

  const restarted = previous !== null && previous.run.pid !== document.run.pid;
  if (restarted) recent.length = 0;
  recent.push(document);
  const oldestMs = Date.parse(document.generated_at) - RECENT_S * 1_000;
  while (recent.length > 2 && Date.parse(recent[1]!.generated_at) <= oldestMs) recent.shift();

  history.add(historyPoint(document, restarted ? null : previous));
  historyVersion.value += 1;
  stages.value = stageWindow(recent[0]!, document);
  events.value = mergeEvents(events.value, document.events_tail, EVENTS_MAX);
  status.value = document;
}

/** What was before this page was opened, or while it had no connection. */
async function loadHistory(): Promise<void> {
  const from = history.points().at(-1)?.t ?? 0;
  try {
    const answer = await fetch(`/api/history?from=${from.toFixed(3)}`);
    if (!answer.ok) return;
    const columns: HistoryColumns = await answer.json();
    history.restore([...history.points(), ...pointsOf(columns)]);
    historyVersion.value += 1;
  } catch {
    // The charts begin now instead; the next connection asks again.
  }
}
