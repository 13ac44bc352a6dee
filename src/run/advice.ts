import type { PipelineWindow, StageName } from "./pipeline-window.ts";
import type { Bottleneck } from "./status.ts";

export interface AdviceContext {
  address: string;
  engines: number;
}

/** "budget": engines wait for room that nobody is busy making. Null: nobody waits for anybody. */
export type Limiting = StageName | "budget" | null;

/** Below this share of their time engines are not held up. */
export const BLOCKED_SHARE = 0.1;
/** From this share on a stage is always busy. */
export const BUSY_SHARE = 0.85;
const THROTTLED_SHARE = 0.01;

/** The verdict in words: where, why, how sure, and what would help. */
export function verdictOn(limiting: Limiting, window: PipelineWindow, context: AdviceContext): Bottleneck {
  switch (limiting) {
    case "compute":
      return computeLimits(window);
    case "pack":
      return packLimits(window);
    case "disk":
      return diskLimits(window, context);
    case "budget":
      return budgetLimits(window, context);
    case "upload":
      return uploadLimits(window, context);
    case "verify":
      return verifyLimits(window);
    case null:
      return nothingLimits(window);
  }
}

function computeLimits({ connections, last, trust }: PipelineWindow): Bottleneck {
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

function packLimits(window: PipelineWindow): Bottleneck {
  return {
    stage: "pack",
    cause: "engine",
    confidence: certainty(window),
    advice: "Checking and naming packs takes longer than making them: give the supervisor more CPU.",
  };
}

function diskLimits(window: PipelineWindow, context: AdviceContext): Bottleneck {
  const { compute, writing } = window;
  return {
    stage: "disk",
    cause: "fsync",
    confidence: certainty(window),
    advice:
      `Engines are held up ${percent(Math.max(writing, compute.blocked))} of their time by the spool's disk. ` +
      `Put the spool on a faster one or in memory: forebay restart ${context.address} --spool /dev/shm/forebay`,
  };
}

function budgetLimits(window: PipelineWindow, context: AdviceContext): Bottleneck {
  const { compute } = window;
  return {
    stage: "disk",
    cause: "budget",
    confidence: certainty(window),
    advice:
      `Engines wait ${percent(compute.blocked)} of their time for room in the spool while uploads have little to do: ` +
      `the budget is too small for this many engines. forebay restart ${context.address} --spool-bytes <more>`,
  };
}

function verifyLimits(window: PipelineWindow): Bottleneck {
  return {
    stage: "verify",
    cause: "verify",
    confidence: certainty(window),
    advice:
      "Connections spend most of their time on verification: the store answers HEAD slowly, or packs must be read " +
      "back. forebay doctor shows how long each takes.",
  };
}

function uploadLimits(window: PipelineWindow, context: AdviceContext): Bottleneck {
  const { first, last, connections } = window;
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
  return found("bandwidth", bandwidthAdvice(window, context));
}

/** What the engines could make, had they not had to wait, says how many of them the link can feed. */
function bandwidthAdvice({ last, compute }: PipelineWindow, context: AdviceContext): string {
  const carries = `The link carries ${last.uploads.mbPerS.toFixed(0)} MB/s however many connections are open`;
  const needed = Math.max(1, Math.ceil(context.engines * (1 - compute.blocked)));
  if (compute.blocked > BLOCKED_SHARE && needed < context.engines) {
    return `${carries}: ${needed} of the ${context.engines} engines would keep it full. A faster link, or fewer taps.`;
  }
  return `${carries}. A faster link, or fewer taps, would help.`;
}

function nothingLimits({ compute, trust }: PipelineWindow): Bottleneck {
  const waiting = compute.starved + compute.blocked;
  const advice =
    waiting > 1 - BUSY_SHARE
      ? `Engines are without a batch ${percent(waiting)} of their time, as at the beginning and the end of a run.`
      : "No stage holds another up.";
  return { stage: null, cause: "none", confidence: trust, advice };
}

/** Half of the trust where the engines are only just held up, all of it where they are half of the time. */
function certainty({ compute, trust }: PipelineWindow): number {
  return trust * (0.5 + 0.5 * Math.min(1, Math.max(0, compute.blocked - BLOCKED_SHARE) / 0.4));
}

function percent(share: number): string {
  return `${Math.round(share * 100)} %`;
}
