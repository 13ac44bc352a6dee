import { type AdviceContext, BLOCKED_SHARE, BUSY_SHARE, type Limiting, verdictOn } from "./advice.ts";
import {
  type PipelineLook,
  type PipelineWindow,
  type StageName,
  WINDOW_S,
  windowBetween,
} from "./pipeline-window.ts";
import type { Bottleneck, StageStatus } from "./status.ts";

const WINDOW_S_MIN = 5;
/** Connections that are idle for want of packs more than this are not what anybody waits for. */
const IDLE_SHARE = 0.3;

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
  if (last.atS - first.atS < WINDOW_S_MIN) return unknown();
  const window = windowBetween(first, last);
  return verdictOn(limiting(window), window, context);
}

/**
 * Engine seconds spent up without a batch, or writing, over all engines in this session: the price of whatever limits
 * the run. Loading is the price of a start, and not among them. Null while no engine has worked.
 */
export function engineSecondsLost(stages: readonly StageStatus[]): number | null {
  const compute = stages.find((stage) => stage.name === "compute");
  if (!compute || compute.busy === 0) return null;
  return compute.blocked;
}

function limiting(window: PipelineWindow): Limiting {
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

function busiestOf({ put, verify, disk, heldUp }: PipelineWindow["connections"]): StageName {
  if (verify > put + heldUp && verify >= disk) return "verify";
  return disk > put + heldUp ? "disk" : "upload";
}

function uploadQueueGrowth({ first, last }: PipelineWindow): number {
  const queueOf = (look: PipelineLook) => look.stages.find(({ name }) => name === "upload")?.queue ?? 0;
  return queueOf(last) - queueOf(first);
}

function unknown(): Bottleneck {
  return {
    stage: null,
    cause: "unknown",
    confidence: 0,
    advice: "Measuring; a verdict needs a few seconds.",
  };
}
