import type { RunEvent, StageStatus, StatusDocument } from "../../src/run/status.ts";

/** A stage now: shares of its slots' time, which add up to 1. */
export interface StageWindow {
  name: StageStatus["name"];
  busy: number;
  starved: number;
  blocked: number;
  queue: number;
  capacity: number | null;
  rate: number | null;
  slots: number;
}

const WINDOW_S_MIN = 5;

/** From the difference of two documents; from the newer one's whole session while they are too near each other. */
export function stageWindow(before: StatusDocument, now: StatusDocument): StageWindow[] {
  const windowS = (Date.parse(now.generated_at) - Date.parse(before.generated_at)) / 1_000;
  const sessionS = Math.max(0, (Date.parse(now.generated_at) - Date.parse(now.run.started_at)) / 1_000);
  return now.stages.map((stage) => {
    const earlier =
      windowS >= WINDOW_S_MIN ? before.stages.find(({ name }) => name === stage.name) : undefined;
    const spent = (state: "busy" | "starved" | "blocked") =>
      Math.max(0, stage[state] - (earlier?.[state] ?? 0));
    const worked = { busy: spent("busy"), blocked: spent("blocked") };
    // Slots of a stage may exist only while they work: what is missing of one slot's time was waiting for work.
    const total = Math.max(
      worked.busy + worked.blocked + spent("starved"),
      earlier ? windowS : sessionS,
      1e-9,
    );
    const [busy, blocked] = [worked.busy / total, worked.blocked / total];
    const { name, queue, capacity, rate, slots } = stage;
    return { name, busy, blocked, starved: 1 - busy - blocked, queue, capacity, rate, slots };
  });
}

/** `known` (oldest first) and what of `tail` (in either order) is not in it; the newest `eventsMax`. */
export function mergeEvents(known: RunEvent[], tail: RunEvent[], eventsMax: number): RunEvent[] {
  const seen = new Set(known.slice(-2 * tail.length - 50).map(keyOf));
  const newestFirst = (tail[0]?.at ?? "") > (tail.at(-1)?.at ?? "");
  const fresh = (newestFirst ? tail.toReversed() : tail).filter((event) => !seen.has(keyOf(event)));
  return fresh.length === 0 ? known : [...known, ...fresh].slice(-eventsMax);
}

export function keyOf(event: RunEvent): string {
  return `${event.at} ${event.event} ${JSON.stringify(event.fields)}`;
}
