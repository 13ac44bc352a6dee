import type { StatusDocument } from "../run/status.ts";
import { lost, type StoredHeartbeat, withLost } from "./lost.ts";
import type { Standing } from "./standing.ts";

/** What this machine's own supervisor said last. */
export interface LastWord {
  document: StatusDocument;
  /** Why nothing will follow, known at once and without waiting for intervals; null: its process lives. */
  gone: string | null;
}

/** null where this machine knows of no supervisor. */
export function lastWordOf({ status: document, look: directory }: Standing): LastWord | null {
  if (!document) return null;
  if (directory.supervisor?.alive) return { document, gone: null };
  const keeper = directory.keeper;
  const said = keeper?.record.decision ? ` (${keeper.record.decision})` : "";
  const next = keeper?.alive ? `; its keeper is ${keeper.record.state}${said}` : "";
  const gone = `its process ${document.run.pid} on this machine is gone${next}`;
  return { document: lost(document, gone), gone };
}

/** What is known of a part from its heartbeat, and from this machine's last word where that was the same part's. */
export function newest(heartbeat: StoredHeartbeat, here: LastWord | null): StatusDocument {
  const { document } = heartbeat;
  if (!here || !samePart(here.document, document)) return withLost(heartbeat);
  if (here.document.generated_at >= document.generated_at) return here.document;
  // A change of state goes to the store at once, and to the run directory with the next second's document.
  return here.gone !== null && sameProcess(here.document, document)
    ? lost(document, here.gone)
    : withLost(heartbeat);
}

export function samePart(a: StatusDocument, b: StatusDocument): boolean {
  return a.run.part.index === b.run.part.index && a.run.part.count === b.run.part.count;
}

function sameProcess(a: StatusDocument, b: StatusDocument): boolean {
  return a.run.host === b.run.host && a.run.pid === b.run.pid;
}
