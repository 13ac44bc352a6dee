import type { Bottleneck, StageStatus } from "./status.ts";

/** What the uploads were doing at one moment; counts are of the whole session. */
export interface UploadState {
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

/** One look at the pipeline; `stages` hold the session's seconds, in the order compute ... verify. */
export interface PipelineLook {
  /** Seconds, monotonic. */
  atS: number;
  stages: readonly StageStatus[];
  uploads: UploadState;
}

export interface AdviceContext {
  address: string;
  engines: number;
}

type StageName = StageStatus["name"];

/** A stage within the window: shares of its slots' time, 0-1. */
interface StageShare {
  name: StageName;
  busy: number;
  starved: number;
  blocked: number;
  queueGrowth: number;
  queue: number;
}

/** Long enough to hold several batches of a slow engine, short enough that the verdict follows a change. */
const WINDOW_S = 30;
const WINDOW_S_MIN = 5;
const BLOCKED_SHARE = 0.1;
const BUSY_SHARE = 0.85;
/** Below this nobody downstream can be called the one everybody waits for. */
const WORKING_SHARE = 0.5;
const THROTTLED_SHARE = 0.01;

/** Keeps the last half minute of looks, so that the verdict is about now and not about the run's beginning. */
export class BottleneckWatch {
  readonly #looks: PipelineLook[] = [];

  /** Once a second or so. */
  look(look: PipelineLook): void {
    this.#looks.push(look);
    while (this.#looks.length > 2 && look.atS - this.#looks[1]!.atS >= WINDOW_S) this.#looks.shift();
  }

  verdict(context: AdviceContext): Bottleneck {
    const [first] = this.#looks;
    const last = this.#looks.at(-1);
    if (!first || !last) return unknown();
    return findBottleneck(first, last, context);
  }
}

/**
 * Which stage limits the run between two looks, and what to do about it. As in Flink's back-pressure monitor:
 * from the sink up, the first stage that is not blocked itself while the one before it is; where nothing is
 * blocked, the stage that is always busy.
 */
export function findBottleneck(first: PipelineLook, last: PipelineLook, context: AdviceContext): Bottleneck {
  const windowS = last.atS - first.atS;
  if (windowS < WINDOW_S_MIN) return unknown();
  const shares = last.stages.map((stage, index) => shareOf(first.stages[index], stage));
  const trust = Math.min(1, windowS / WINDOW_S);
  const window: Window = { first, last, shares, context, trust };

  if (shares.every((share) => share.busy + share.blocked < 0.02)) {
    return { stage: null, cause: "none", confidence: trust, advice: "Nothing is being worked on just now." };
  }
  const limiting = waitedFor(shares) ?? filling(shares) ?? alwaysBusy(shares);
  switch (limiting) {
    case "compute":
      return computeLimits(window);
    case "pack":
      return packLimits(window);
    case "disk":
      return diskLimits(window);
    case "budget":
      return budgetLimits(window);
    case "upload":
      return uploadLimits(window);
    case "verify":
      return verifyLimits(window);
    case null:
      return nothingLimits(window);
  }
}

/**
 * Engine seconds that were not spent computing, over all engines in this session: the price of whatever limits
 * the run. Null while no engine has worked.
 */
export function engineSecondsLost(stages: readonly StageStatus[]): number | null {
  const compute = stages.find((stage) => stage.name === "compute");
  if (!compute || compute.busy === 0) return null;
  return compute.blocked + compute.starved;
}

interface Window {
  first: PipelineLook;
  last: PipelineLook;
  shares: StageShare[];
  context: AdviceContext;
  /** How much of a full window was seen, 0-1. */
  trust: number;
}

/** "budget": everybody waits for room that nobody is busy making. */
type Limiting = StageName | "budget";

function shareOf(before: StageStatus | undefined, now: StageStatus): StageShare {
  const spent = (state: "busy" | "starved" | "blocked") => Math.max(0, now[state] - (before?.[state] ?? 0));
  const seconds = { busy: spent("busy"), starved: spent("starved"), blocked: spent("blocked") };
  const total = seconds.busy + seconds.starved + seconds.blocked;
  const share = (part: number) => (total > 0 ? part / total : 0);
  return {
    name: now.name,
    busy: share(seconds.busy),
    starved: share(seconds.starved),
    blocked: share(seconds.blocked),
    queueGrowth: now.queue - (before?.queue ?? now.queue),
    queue: now.queue,
  };
}

/** The stage that a blocked one waits for. */
function waitedFor(shares: StageShare[]): Limiting | null {
  const blockedAt = shares.findLastIndex((share) => share.blocked > BLOCKED_SHARE);
  if (blockedAt < 0) return null;
  const downstream = shares.slice(blockedAt + 1);
  const [next] = downstream;
  // The sink has nothing to wait for but itself.
  if (!next) return shares[blockedAt]!.name;
  if (next.busy >= WORKING_SHARE) return next.name;
  // A stage of short work (packing is a rename) may stand between the one that waits and the one that works.
  const busiest = downstream.reduce((most, share) => (share.busy > most.busy ? share : most));
  if (busiest.busy >= WORKING_SHARE) return busiest.name;
  return shares[blockedAt]!.name === "upload" ? next.name : "budget";
}

/** Uploads that fall behind while the spool still has room: they will block the engines once it is full. */
function filling(shares: StageShare[]): Limiting | null {
  const upload = shares.find((share) => share.name === "upload");
  if (!upload) return null;
  return upload.busy >= BUSY_SHARE && upload.queueGrowth >= 2 ? "upload" : null;
}

function alwaysBusy(shares: StageShare[]): Limiting | null {
  // Engines that are always busy are what the whole machine is for, so compute is asked first.
  return shares.find((share) => share.busy >= BUSY_SHARE)?.name ?? null;
}

function computeLimits({ last, shares, trust }: Window): Bottleneck {
  const upload = shares.find((share) => share.name === "upload");
  const spare =
    upload && upload.busy > 0 && upload.busy < 0.7 && last.uploads.mbPerS > 0
      ? ` Uploads use ${percent(upload.busy)} of what they have open.`
      : "";
  return {
    stage: "compute",
    cause: "engine",
    confidence: trust,
    advice: `The engines work all the time and nothing holds them up: only more or faster ones would help.${spare}`,
  };
}

function packLimits({ trust, shares }: Window): Bottleneck {
  return {
    stage: "pack",
    cause: "engine",
    confidence: trust * clarity(shares),
    advice: "Checking and naming packs takes longer than making them: give the supervisor more CPU.",
  };
}

function diskLimits({ trust, shares, context }: Window): Bottleneck {
  return {
    stage: "disk",
    cause: "fsync",
    confidence: trust * clarity(shares),
    advice:
      `Engines wait ${engineWait(shares)} of their time for the spool's disk to take what they write. ` +
      `Put the spool on a faster disk or in memory: forebay restart ${context.address} --spool /dev/shm/forebay`,
  };
}

function budgetLimits({ trust, shares, context }: Window): Bottleneck {
  return {
    stage: "disk",
    cause: "budget",
    confidence: trust * clarity(shares),
    advice:
      `Engines wait ${engineWait(shares)} of their time for room in the spool while uploads have little to do: ` +
      `the budget is too small for this many engines. forebay restart ${context.address} --spool-bytes <more>`,
  };
}

function verifyLimits({ trust, shares }: Window): Bottleneck {
  return {
    stage: "verify",
    cause: "verify",
    confidence: trust * clarity(shares),
    advice:
      "Uploads wait for their verification: the store answers HEAD slowly, or must be read back. " +
      "forebay doctor shows how long each takes.",
  };
}

function uploadLimits({ first, last, shares, context, trust }: Window): Bottleneck {
  const { uploads } = last;
  const found = (cause: string, advice: string): Bottleneck => {
    return { stage: "upload", cause, confidence: trust * clarity(shares), advice };
  };
  const set = `forebay set ${context.address}`;
  const throttled = uploads.throttled - first.uploads.throttled;
  const requests = uploads.requests - first.uploads.requests;
  if (throttled > 0 && throttled >= requests * THROTTLED_SHARE) {
    const remedy = uploads.auto
      ? "Forebay has lowered the number of connections by itself; only the store's owner can raise its limit."
      : `${set} uploads=auto finds the number that it takes.`;
    return found("throttled", `The store asks to be sent less (${throttled} times just now). ${remedy}`);
  }
  const inUse = `${uploads.inflight} of ${uploads.limit} connections`;
  if (uploads.inflight < uploads.limit * 0.9 && last.stages.some((s) => s.name === "upload" && s.queue > 0)) {
    return found(
      "sockets",
      `Packs wait though only ${inUse} are in use: the bytes in flight are at their limit. ` +
        `${set} inflight-bytes=<more>`,
    );
  }
  if (!uploads.auto) {
    return found(
      "sockets",
      `All ${uploads.limit} connections are in use and packs wait for one. ${set} uploads=auto finds how many ` +
        "the link carries.",
    );
  }
  if (uploads.limit >= uploads.ceiling) {
    return found("sockets", `All ${inUse} are in use, as many as are allowed, and packs wait for one.`);
  }
  if (uploads.limit > first.uploads.limit * 1.1) {
    return found(
      "sockets",
      `Still finding how many connections the link carries: ${uploads.limit} now, rising.`,
    );
  }
  return found("bandwidth", bandwidthAdvice(last, shares, context));
}

/** What the engines could make, had they not had to wait, says how many of them the link can feed. */
function bandwidthAdvice(last: PipelineLook, shares: StageShare[], { engines }: AdviceContext): string {
  const carries = `The link carries ${last.uploads.mbPerS.toFixed(0)} MB/s however many connections are open`;
  const compute = shares.find((share) => share.name === "compute");
  const busy = compute?.busy ?? 0;
  const needed = Math.max(1, Math.ceil(engines * busy));
  if (busy > 0 && compute!.blocked > BLOCKED_SHARE && needed < engines) {
    return `${carries}: ${needed} of the ${engines} engines would keep it full. A faster link, or fewer taps.`;
  }
  return `${carries}. A faster link, or fewer taps, would help.`;
}

function nothingLimits({ shares, trust }: Window): Bottleneck {
  const compute = shares.find((share) => share.name === "compute");
  const advice =
    compute && compute.starved > 1 - BUSY_SHARE
      ? `Engines wait ${percent(compute.starved)} of their time for batches, as at the beginning and end of a run.`
      : "No stage holds another up.";
  return { stage: null, cause: "none", confidence: trust, advice };
}

function unknown(): Bottleneck {
  return {
    stage: null,
    cause: "unknown",
    confidence: 0,
    advice: "Measuring; a verdict needs a few seconds.",
  };
}

/** 0.5 where a stage is only just blocked, 1 where somebody waits half of the time. */
function clarity(shares: StageShare[]): number {
  const blocked = Math.max(...shares.map((share) => share.blocked));
  return 0.5 + 0.5 * Math.min(1, Math.max(0, blocked - BLOCKED_SHARE) / 0.4);
}

function engineWait(shares: StageShare[]): string {
  return percent(shares.find((share) => share.name === "compute")?.blocked ?? 0);
}

function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}
