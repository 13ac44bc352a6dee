import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import { describeError, EXIT, RunError } from "../base/errors.ts";
import { FILES } from "../control/run-directory.ts";
import type { Plan } from "../plan/plan.ts";
import type { StatusDocument } from "../run/status.ts";
import { type Io, printJson, SignalReceived, say } from "./io.ts";
import { type LastWord, lastWordOf, newest, samePart } from "./last-word.ts";
import { hasEnded, mergeParts, presentParts, type StoredAmounts } from "./merge-parts.ts";
import { withStore } from "./open-store.ts";
import { countText, progressBlock } from "./progress-lines.ts";
import { type RunPlace, runPlace } from "./run-place.ts";
import { standingOf } from "./standing.ts";
import { partLines, statusTable } from "./status-table.ts";
import { readStoredStatus } from "./stored-status.ts";
import type { Call, VerbSpec } from "./verb.ts";

const WATCH_LIVE_MS = 1_000;
/** Each look at a bucket costs requests, and the more of them the longer it takes. */
const WATCH_STORE_MS_MIN = 15_000;
const WATCH_STORE_SHARE = 0.05;

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
    let plan: Plan | null = null;
    for (let looks = 0; ; looks += 1) {
      const startMs = performance.now();
      const found: Found = await look(call, plan);
      plan = found.plan;
      if (json)
        printJson(io, found.document ?? { state: "unknown", counts: found.amounts?.committed ?? null });
      else show(found, io, { again: looks > 0, watch: options.watch === true });
      if (options.watch !== true || found.ended) return EXIT.done;
      const tookMs = performance.now() - startMs;
      const pauseMs = Math.max(WATCH_STORE_MS_MIN, tookMs / WATCH_STORE_SHARE);
      try {
        await sleep(found.live ? WATCH_LIVE_MS : pauseMs, io.signal);
      } catch (error) {
        // The usual end of watching, and no news to who pressed Ctrl-C.
        if (error instanceof SignalReceived) return error.exitCode;
        throw error;
      }
    }
  },
};

interface Found {
  document: StatusDocument | null;
  parts: StatusDocument[];
  amounts: StoredAmounts | null;
  plan: Plan | null;
  live: boolean;
  /** Nothing more is to be expected. */
  ended: boolean;
  source: string;
}

/** `known`: the plan, from an earlier look. */
async function look(call: Call, known: Plan | null): Promise<Found> {
  const { io, settings } = call;
  const directoryOnly = call.address === null ? settings.values.runDir : null;
  const place = directoryOnly === null ? runPlace(call) : null;
  const directory = directoryOnly ?? place!.directory;
  const standing = await standingOf(directory);
  if (standing.live) return { ...one(standing.status!, "the living supervisor"), live: true, ended: false };
  const here = lastWordOf(standing);
  const isKept = standing.look.keeper?.alive === true;
  if (!place) {
    if (here) return one(here.document, `the run directory ${directory}`, isKept);
    throw notARun(directory, [join(directory, FILES.supervisor), join(directory, FILES.status)]);
  }
  try {
    return await fromStore(place, { here, isKept, known, io });
  } catch (error) {
    if (!here || !(error instanceof RunError)) throw error;
    say(io, `the store cannot be asked (${describeError(error)}); this is the run directory's last word`);
    return one(here.document, `the run directory ${directory}`, isKept);
  }
}

function one(document: StatusDocument, source: string, isKept = false): Found {
  const parts = [document];
  return { document, parts, amounts: null, plan: null, live: false, ended: isOver(parts, isKept), source };
}

/** A keeper may start the supervisor of this machine again; one elsewhere that is lost may not come back. */
function isOver(parts: readonly StatusDocument[], isKept: boolean): boolean {
  return !isKept && parts.every(({ run }) => hasEnded(run.state) || run.state === "lost");
}

async function fromStore(
  place: RunPlace,
  {
    here: standing,
    isKept,
    known,
    io,
  }: { here: LastWord | null; isKept: boolean; known: Plan | null; io: Io },
): Promise<Found> {
  const stored = await withStore(place.spec, io, (store) =>
    readStoredStatus(store, { known, signal: io.signal }),
  );
  const { amounts, plan } = stored;
  // A start that was refused here says nothing of the run that stands there.
  const isRun = standing?.document.run.id !== "" || (stored.heartbeats.length === 0 && !amounts);
  const here = isRun ? standing : null;
  const all = stored.heartbeats.map((heartbeat) => newest(heartbeat, here));
  if (here && !all.some((part) => samePart(part, here.document))) all.push(here.document);
  if (all.length === 0 && !amounts) {
    throw notARun(place.address, [
      join(place.directory, FILES.supervisor),
      join(place.directory, FILES.status),
      `${place.address}/status/`,
      `${place.address}/run.json`,
    ]);
  }
  const parts = presentParts(all);
  const document = parts.length === 0 ? null : mergeParts(parts, amounts);
  return { document, parts, amounts, plan, live: false, ended: isOver(parts, isKept), source: "the store" };
}

function show(found: Found, io: Io, { again, watch }: { again: boolean; watch: boolean }): void {
  const { document, amounts } = found;
  if (!document) {
    const { committed, total } = amounts ?? { committed: null, total: null };
    io.stdout(
      `no heartbeat stands in the store, so no machine works on it\n` +
        `committed: ${countText(committed?.batches ?? 0)} of ${countText(total?.batches ?? 0)} batches, ` +
        `${countText(committed?.samples ?? 0)} of ${countText(total?.samples ?? 0)} samples\n`,
    );
    return;
  }
  const colour = io.stdoutIsTty && !io.env.NO_COLOR;
  if (watch && io.stdoutIsTty) {
    const lines = progressBlock(document, { columns: io.columns(), colour });
    if (found.parts.length > 1) lines.push("", ...partLines(found.parts));
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
