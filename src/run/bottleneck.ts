import type { Bottleneck, StageStatus } from "./status.ts";

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

export interface AdviceContext {
  address: string;
  engines: number;
}

type StageName = StageStatus["name"];
type Shares = Record<"busy" | "starved" | "blocked", number>;

/** Long enough to hold several batches of a slow engine, short enough that the verdict follows a change. */
const WINDOW_S = 30;
const WINDOW_S_MIN = 5;
/** Below this share of their time engines are not held up. */
const BLOCKED_SHARE = 0.1;
const BUSY_SHARE = 0.85;
/** Connections that are idle for want of packs more than this are not what anybody waits for. */
const IDLE_SHARE = 0.3;
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
 * Which stage limits the run between two looks, and what to do about it. In the manner of Flink's back-pressure
 * monitor: a stage limits the run when the one before it is held up and it is not; what holds nobody up, however
 * slow, does not limit. Engines are the first stage, so all begins with whether they are held up.
 */
export function findBottleneck(first: PipelineLook, last: PipelineLook, context: AdviceContext): Bottleneck {
  const windowS = last.atS - first.atS;
  if (windowS < WINDOW_S_MIN) return unknown();
  const seconds = secondsBetween(first, last);
  const writeS = Math.max(0, last.engineWriteS - first.engineWriteS);
  const window: Window = {
    first,
    last,
    context,
    trust: Math.min(1, windowS / WINDOW_S),
    compute: sharesOf(seconds.compute, 0),
    pack: sharesOf(seconds.pack, windowS),
    writing: writeS / Math.max(1e-9, sumOf(seconds.compute)),
    connections: connectionShares(seconds, writeS),
    waitingForRoom: seconds.disk.blocked / windowS,
  };

  switch (limiting(window)) {
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
  context: AdviceContext;
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

/** "budget": engines wait for room that nobody is busy making. */
function limiting(window: Window): StageName | "budget" | null {
  const { compute, writing, pack, connections, waitingForRoom } = window;
  if (compute.blocked > BLOCKED_SHARE) {
    if (writing > BLOCKED_SHARE && writing >= compute.blocked / 2) return "disk";
    if (pack.busy >= BUSY_SHARE) return "pack";
    if (connections.idle <= IDLE_SHARE) return busiestOf(connections);
    return waitingForRoom > BLOCKED_SHARE ? "budget" : null;
  }
  // Uploads that fall behind while the spool has room will hold the engines up once it is full.
  if (connections.idle <= 1 - BUSY_SHARE && uploadQueueGrowth(window) >= 2) return busiestOf(connections);
  return compute.busy >= BUSY_SHARE ? "compute" : null;
}

function busiestOf({ put, verify, disk, heldUp }: Window["connections"]): StageName {
  if (verify > put + heldUp && verify >= disk) return "verify";
  return disk > put + heldUp ? "disk" : "upload";
}

function uploadQueueGrowth({ first, last }: Window): number {
  const queueOf = (look: PipelineLook) => look.stages.find(({ name }) => name === "upload")?.queue ?? 0;
  return queueOf(last) - queueOf(first);
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
): Window["connections"] {
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

function computeLimits({ connections, last, trust }: Window): Bottleneck {
  const working = 1 - connections.idle;
  const spare =
    last.uploads.mbPerS > 0 ? ` Connections to the store have work ${percent(working)} of their time.` : "";
  return {
    stage: "compute",
    cause: "engine",
    confidence: trust,
    advice: `The engines work all the time and nothing holds them up: only more or faster ones would help.${spare}`,
  };
}

function packLimits(window: Window): Bottleneck {
  return {
    stage: "pack",
    cause: "engine",
    confidence: certainty(window),
    advice: "Checking and naming packs takes longer than making them: give the supervisor more CPU.",
  };
}

function diskLimits(window: Window): Bottleneck {
  const { compute, writing, context } = window;
  return {
    stage: "disk",
    cause: "fsync",
    confidence: certainty(window),
    advice:
      `Engines are held up ${percent(Math.max(writing, compute.blocked))} of their time by the spool's disk. ` +
      `Put the spool on a faster one or in memory: forebay restart ${context.address} --spool /dev/shm/forebay`,
  };
}

function budgetLimits(window: Window): Bottleneck {
  const { compute, context } = window;
  return {
    stage: "disk",
    cause: "budget",
    confidence: certainty(window),
    advice:
      `Engines wait ${percent(compute.blocked)} of their time for room in the spool while uploads have little to do: ` +
      `the budget is too small for this many engines. forebay restart ${context.address} --spool-bytes <more>`,
  };
}

function verifyLimits(window: Window): Bottleneck {
  return {
    stage: "verify",
    cause: "verify",
    confidence: certainty(window),
    advice:
      "Connections spend most of their time on verification: the store answers HEAD slowly, or packs must be read " +
      "back. forebay doctor shows how long each takes.",
  };
}

function uploadLimits(window: Window): Bottleneck {
  const { first, last, context, connections } = window;
  const { uploads } = last;
  const found = (cause: string, advice: string): Bottleneck => {
    return { stage: "upload", cause, confidence: certainty(window), advice };
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
  if (connections.heldUp > connections.put) {
    return found(
      "sockets",
      `Packs wait though connections are idle ${percent(connections.heldUp)} of their time: the bytes in flight are ` +
        `at their limit, or the store keeps failing (see the events). ${set} inflight-bytes=<more>`,
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
    return found(
      "sockets",
      `All ${uploads.limit} connections are in use, as many as are allowed, and packs wait for one.`,
    );
  }
  if (uploads.limit > first.uploads.limit * 1.1) {
    return found(
      "sockets",
      `Still finding how many connections the link carries: ${uploads.limit} now, rising.`,
    );
  }
  return found("bandwidth", bandwidthAdvice(window));
}

/** What the engines could make, had they not had to wait, says how many of them the link can feed. */
function bandwidthAdvice({ last, compute, context }: Window): string {
  const carries = `The link carries ${last.uploads.mbPerS.toFixed(0)} MB/s however many connections are open`;
  const needed = Math.max(1, Math.ceil(context.engines * (1 - compute.blocked)));
  if (compute.blocked > BLOCKED_SHARE && needed < context.engines) {
    return `${carries}: ${needed} of the ${context.engines} engines would keep it full. A faster link, or fewer taps.`;
  }
  return `${carries}. A faster link, or fewer taps, would help.`;
}

function nothingLimits({ compute, trust }: Window): Bottleneck {
  const waiting = compute.starved + compute.blocked;
  const advice =
    waiting > 1 - BUSY_SHARE
      ? `Engines are without a batch ${percent(waiting)} of their time, as at the beginning and the end of a run.`
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

/** Half of the trust where the engines are only just held up, all of it where they are half of the time. */
function certainty({ compute, trust }: Window): number {
  return trust * (0.5 + 0.5 * Math.min(1, Math.max(0, compute.blocked - BLOCKED_SHARE) / 0.4));
}

function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}
