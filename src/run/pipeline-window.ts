import type { StageStatus } from "./status.ts";

/** What the uploads were doing at one moment; counts are of the whole session. */
interface UploadState {
  inflight: number;
  /** Connections allowed now. */
  limit: number;
  /** Whether Forebay moves `limit` itself, and the highest it may go. */
  auto: boolean;
  ceiling: number;
  /** PUTs answered at all, and those answered with SlowDown, 503 or 429. */
  requests: number;
  throttled: number;
  mbPerS: number;
}

/**
 * One look at the pipeline; `stages` hold the session's seconds, in the order compute ... verify:
 * compute busy with batches, blocked while up without one (or writing, see `engineWriteS`), starved while loading;
 * disk blocked while engines wait for room in the spool; a connection's time is upload.busy (PUT), verify.busy,
 * disk.busy (reading and deleting; engines' writing comes on top), or idle: upload.blocked while packs wait
 * nevertheless, upload.starved while none do.
 */
export interface PipelineLook {
  /** Seconds, monotonic. */
  atS: number;
  stages: readonly StageStatus[];
  /** Engine seconds spent writing states into the spool; part of compute.blocked. */
  engineWriteS: number;
  uploads: UploadState;
}

export type StageName = StageStatus["name"];
type Shares = Record<"busy" | "starved" | "blocked", number>;

/** A full window: long enough for several batches of a slow engine, short enough that a verdict follows a change. */
export const WINDOW_S = 30;

/** What happened between two looks. */
export interface PipelineWindow {
  first: PipelineLook;
  last: PipelineLook;
  /** How much of a full window was seen, 0-1. */
  trust: number;
  /** Shares of the engines' time, of which `writing` is part of blocked. */
  compute: Shares;
  writing: number;
  pack: Shares;
  /** Shares of the time of all connections; they add up to 1. */
  connections: { put: number; verify: number; disk: number; heldUp: number; idle: number };
  /** Share of the window in which some engine waited for room in the spool. */
  waitingForRoom: number;
}

/** The share of everything between two looks at the same session. */
export function windowBetween(first: PipelineLook, last: PipelineLook): PipelineWindow {
  const windowS = last.atS - first.atS;
  const seconds = secondsBetween(first, last);
  const writeS = Math.max(0, last.engineWriteS - first.engineWriteS);
  return {
    first,
    last,
    trust: Math.min(1, windowS / WINDOW_S),
    compute: sharesOf(seconds.compute, 0),
    pack: sharesOf(seconds.pack, windowS),
    writing: writeS / Math.max(1e-9, sumOf(seconds.compute)),
    connections: connectionShares(seconds, writeS),
    waitingForRoom: seconds.disk.blocked / windowS,
  };
}

function secondsBetween(first: PipelineLook, last: PipelineLook): Record<StageName, Shares> {
  const seconds = (name: StageName): Shares => {
    const now = last.stages.find((stage) => stage.name === name);
    const before = first.stages.find((stage) => stage.name === name);
    const spent = (state: keyof Shares) => Math.max(0, (now?.[state] ?? 0) - (before?.[state] ?? 0));
    return { busy: spent("busy"), starved: spent("starved"), blocked: spent("blocked") };
  };
  return {
    compute: seconds("compute"),
    pack: seconds("pack"),
    disk: seconds("disk"),
    upload: seconds("upload"),
    verify: seconds("verify"),
  };
}

function sumOf({ busy, starved, blocked }: Shares): number {
  return busy + starved + blocked;
}

/** Of the stage's own time, or of `atLeastS` where its slots exist only while they work. */
function sharesOf(seconds: Shares, atLeastS: number): Shares {
  const total = Math.max(sumOf(seconds), atLeastS, 1e-9);
  return { busy: seconds.busy / total, starved: seconds.starved / total, blocked: seconds.blocked / total };
}

function connectionShares(
  { disk, upload, verify }: Record<StageName, Shares>,
  engineWriteS: number,
): PipelineWindow["connections"] {
  const diskS = Math.max(0, disk.busy - engineWriteS);
  const total = sumOf(upload) + verify.busy + diskS;
  // Before any connection had anything to do they are as idle as can be.
  if (total === 0) return { put: 0, verify: 0, disk: 0, heldUp: 0, idle: 1 };
  return {
    put: upload.busy / total,
    verify: verify.busy / total,
    disk: diskS / total,
    heldUp: upload.blocked / total,
    idle: upload.starved / total,
  };
}
