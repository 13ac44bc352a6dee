import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import { describeError, EXIT, RunError } from "../base/errors.ts";
import { FILES } from "../control/run-directory.ts";
import type { StatusDocument } from "../run/status.ts";
import { type Io, printJson, say } from "./io.ts";
import { lost, mergeParts, type StoredCounts, withLost } from "./merge-status.ts";
import { withStore } from "./open-store.ts";
import { countText, progressBlock } from "./progress-lines.ts";
import { type RunPlace, runPlace } from "./run-place.ts";
import { type Standing, standingOf } from "./standing.ts";
import { statusTable } from "./status-table.ts";
import { readStoredStatus } from "./stored-status.ts";
import type { Call, VerbSpec } from "./verb.ts";

const WATCH_LIVE_MS = 1_000;
/** Each look at a bucket costs requests. */
const WATCH_STORE_MS = 15_000;

export const status: VerbSpec = {
  name: "status",
  settings: "status",
  summary: "how a run stands: from its living supervisor, its run directory, or the store alone",
  arguments: [["[address]", "the run"]],
  options: [["-w, --watch", "go on showing it"]],
  examples: [
    "forebay status s3://bucket/prefix/name",
    "forebay status s3://bucket/prefix/name --watch",
    "forebay status file:demo-run/demo --json | jq .extraction.total_processed",
    "forebay status --run-dir ~/.local/state/forebay/name-1a2b3c4d",
  ],
  async run(call) {
    const { io, options, json } = call;
    for (let looks = 0; ; looks += 1) {
      const found = await look(call);
      if (json) printJson(io, found.document ?? { state: "unknown", counts: found.counts });
      else show(found, io, { again: looks > 0, watch: options.watch === true });
      if (options.watch !== true || found.ended) return EXIT.done;
      await sleep(found.live ? WATCH_LIVE_MS : WATCH_STORE_MS, io.signal);
    }
  },
};

interface Found {
  document: StatusDocument | null;
  parts: StatusDocument[];
  counts: StoredCounts | null;
  totals: { rows: number; batches: number; tokens: number } | null;
  live: boolean;
  ended: boolean;
  source: string;
}

async function look(call: Call): Promise<Found> {
  const { io, settings } = call;
  const directoryOnly = call.address === null ? settings.values.runDir : null;
  const place = directoryOnly === null ? runPlace(call) : null;
  const directory = directoryOnly ?? place!.directory;
  const standing = await standingOf(directory);
  if (standing.live) return fromSupervisor(standing);
  const here = standing.status && deadHere(standing);
  if (!place) {
    if (here) return one(here, `the run directory ${directory}`);
    throw notARun(directory, [join(directory, FILES.supervisor), join(directory, FILES.status)]);
  }
  try {
    return await fromStore(place, here, io);
  } catch (error) {
    if (!here || !(error instanceof RunError)) throw error;
    say(io, `the store cannot be asked (${describeError(error)}); this is the run directory's last word`);
    return one(here, `the run directory ${directory}`);
  }
}

function fromSupervisor({ status: document }: Standing): Found {
  return { ...one(document!, "the living supervisor"), live: true, ended: false };
}

function one(document: StatusDocument, source: string): Found {
  const ended = ["stopped", "preempted", "done", "done_with_skips", "failed", "lost"].includes(
    document.run.state,
  );
  return { document, parts: [document], counts: null, totals: null, live: false, ended, source };
}

/** The last word of a supervisor that is gone from this very machine: known at once, without waiting for intervals. */
function deadHere({ status: document, look: directory }: Standing): StatusDocument | null {
  if (!document) return null;
  if (directory.supervisor?.alive) return document;
  const keeper = directory.keeper;
  const next = keeper?.alive ? `; its keeper is ${keeper.record.state}` : "";
  return lost(document, `its process ${document.run.pid} on this machine is gone${next}`);
}

async function fromStore(place: RunPlace, here: StatusDocument | null, io: Io): Promise<Found> {
  const stored = await withStore(place.spec, io, (store) => readStoredStatus(store, io.signal));
  const parts = stored.heartbeats.map((heartbeat) => {
    const { document } = heartbeat;
    // What this machine knows of its own part is newer than its last heartbeat.
    const own = here && samePart(here, document) && here.generated_at >= document.generated_at;
    return own ? here : withLost(heartbeat);
  });
  if (here && !parts.some((part) => samePart(part, here))) parts.push(here);
  const { counts, totals } = stored;
  if (parts.length === 0 && !counts) {
    throw notARun(place.address, [
      join(place.directory, FILES.supervisor),
      join(place.directory, FILES.status),
      `${place.address}/status/`,
      `${place.address}/run.json`,
    ]);
  }
  const document = parts.length === 0 ? null : mergeParts(parts, counts);
  const ended = document === null || one(document, "").ended;
  return { document, parts, counts, totals, live: false, ended, source: "the store" };
}

function samePart(a: StatusDocument, b: StatusDocument): boolean {
  return a.run.part.index === b.run.part.index && a.run.part.count === b.run.part.count;
}

function show(found: Found, io: Io, { again, watch }: { again: boolean; watch: boolean }): void {
  const { document, counts, totals } = found;
  if (!document) {
    io.stdout(
      `no heartbeat stands in the store, so no machine works on it\n` +
        `committed: ${countText(counts?.batches ?? 0)} of ${countText(totals?.batches ?? 0)} batches, ` +
        `${countText(counts?.samples ?? 0)} samples\n`,
    );
    return;
  }
  const colour = io.stdoutIsTty && !io.env.NO_COLOR;
  if (watch && io.stdoutIsTty) {
    const lines = progressBlock(document, { columns: io.columns(), colour });
    io.stdout(`${again ? "\u001b[H\u001b[J" : "\u001b[2J\u001b[H"}${lines.join("\n")}\n`);
    return;
  }
  io.stdout(`${statusTable(document, found.parts, found.source).join("\n")}\n`);
}

function notARun(subject: string, lookedFor: string[]): RunError {
  return new RunError({
    op: "find run",
    subject,
    message: `no run stands here; looked for ${lookedFor.join(", ")}`,
    safe: "nothing was changed",
    hint: "forebay ls STORE lists the runs of a store; check bucket, prefix, --endpoint and --part",
    exit: EXIT.usage,
  });
}
