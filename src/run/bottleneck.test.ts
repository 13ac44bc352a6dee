import { expect, test } from "vitest";
import { BottleneckWatch, engineSecondsLost, findBottleneck } from "./bottleneck.ts";
import type { PipelineLook } from "./pipeline-window.ts";
import type { StageStatus } from "./status.ts";

const CONTEXT = { address: "file:runs/a", engines: 4 };

/** What a run does for a while: shares of the engines' time, and of all connections' time. */
interface Doing {
  busy: number;
  /** Engines up without a batch. */
  waiting?: number;
  writing?: number;
  pack?: number;
  put?: number;
  verify?: number;
  read?: number;
  /** Connections idle though packs wait. */
  heldUp?: number;
  /** Share of the time in which an engine waits for room in the spool. */
  noRoom?: number;
  uploads?: Partial<PipelineLook["uploads"]>;
  queue?: number;
}

const NAMES = ["compute", "pack", "disk", "upload", "verify"] as const;
const START: PipelineLook = {
  atS: 0,
  engineWriteS: 0,
  uploads: { inflight: 16, limit: 16, auto: true, ceiling: 1_000, requests: 0, throttled: 0, mbPerS: 120 },
  stages: NAMES.map((name) => ({
    name,
    slots: name === "compute" ? 4 : 1,
    busy: 0,
    starved: 0,
    blocked: 0,
    queue: 0,
    capacity: null,
    rate: null,
  })),
};

function after(look: PipelineLook, seconds: number, doing: Doing): PipelineLook {
  const { busy, waiting = 0, writing = 0, pack = 0.05, put = 0, verify = 0, read = 0, heldUp = 0 } = doing;
  const engineS = 4 * seconds;
  const connectionS = 16 * seconds;
  const idle = 1 - put - verify - read - heldUp;
  const spent: Record<StageStatus["name"], [busy: number, starved: number, blocked: number]> = {
    compute: [busy * engineS, (1 - busy - waiting - writing) * engineS, (waiting + writing) * engineS],
    pack: [pack * seconds, 0, 0],
    disk: [writing * engineS + read * connectionS, 0, (doing.noRoom ?? 0) * seconds],
    upload: [put * connectionS, idle * connectionS, heldUp * connectionS],
    verify: [verify * connectionS, 0, 0],
  };
  return {
    atS: look.atS + seconds,
    engineWriteS: look.engineWriteS + writing * engineS,
    uploads: { ...look.uploads, requests: look.uploads.requests + 30 * seconds, ...doing.uploads },
    stages: look.stages.map((stage) => ({
      ...stage,
      busy: stage.busy + spent[stage.name][0],
      starved: stage.starved + spent[stage.name][1],
      blocked: stage.blocked + spent[stage.name][2],
      queue: stage.name === "upload" ? (doing.queue ?? stage.queue) : stage.queue,
    })),
  };
}

function verdict(doing: Doing) {
  return findBottleneck(START, after(START, 30, doing), CONTEXT);
}

/** The spool is full: engines wait for room that the uploads make. */
const FULL: Doing = { busy: 0.4, waiting: 0.6, noRoom: 1, put: 0.95, verify: 0.03 };

test("engines that are never held up are the limit, and that is no alarm", () => {
  const found = verdict({ busy: 0.97, waiting: 0.03, put: 0.4 });
  expect(found).toMatchObject({ stage: "compute", cause: "engine" });
  expect(found.advice).toContain("nothing holds them up");
});

test("slow steps that hold no engine up do not limit: readback, a full pack stage, a claim that waits its turn", () => {
  expect(
    verdict({ busy: 0.96, waiting: 0.04, put: 0.02, verify: 0.3, heldUp: 0.4, noRoom: 0.9, pack: 1 }).stage,
  ).toBe("compute");
});

test("a link that carries no more with more connections", () => {
  const found = verdict(FULL);
  expect(found).toMatchObject({ stage: "upload", cause: "bandwidth" });
  expect(found.advice).toContain("120 MB/s");
  expect(found.advice).toContain("2 of the 4 engines");
  expect(found.confidence).toBe(1);
});

test("a fixed number of connections, all in use: let Forebay find the number", () => {
  const found = verdict({ ...FULL, uploads: { auto: false } });
  expect(found).toMatchObject({ stage: "upload", cause: "sockets" });
  expect(found.advice).toContain("forebay set file:runs/a uploads=auto");
});

test("the ceiling of connections, and a number still rising, are said as such", () => {
  expect(verdict({ ...FULL, uploads: { limit: 1_000 } }).advice).toContain("as many as are allowed");
  expect(verdict({ ...FULL, uploads: { limit: 32 } }).advice).toContain("rising");
});

test("packs that wait beside idle connections wait for bytes in flight", () => {
  const found = verdict({ ...FULL, put: 0.3, heldUp: 0.65 });
  expect(found).toMatchObject({ stage: "upload", cause: "sockets" });
  expect(found.advice).toContain("inflight-bytes");
});

test("a store that answers SlowDown is named before anything else about uploads", () => {
  const found = verdict({ ...FULL, put: 0.2, heldUp: 0.7, uploads: { throttled: 40, auto: false } });
  expect(found).toMatchObject({ stage: "upload", cause: "throttled" });
  expect(found.advice).toContain("uploads=auto");
});

test("one SlowDown in a thousand requests is not what limits a run", () => {
  expect(verdict({ ...FULL, uploads: { throttled: 1, requests: 1_000 } }).cause).toBe("bandwidth");
});

test("a disk that takes the states slowly", () => {
  const found = verdict({ busy: 0.3, writing: 0.65, waiting: 0.05, put: 0.1 });
  expect(found).toMatchObject({ stage: "disk", cause: "fsync" });
  expect(found.advice).toContain("70 %");
});

test("connections that spend their time reading packs from a slow disk", () => {
  expect(verdict({ ...FULL, put: 0.2, read: 0.7, verify: 0.02 })).toMatchObject({
    stage: "disk",
    cause: "fsync",
  });
});

test("engines that wait for room while nobody is busy making it have too small a budget", () => {
  const found = verdict({ busy: 0.5, waiting: 0.5, noRoom: 0.8, put: 0.2 });
  expect(found).toMatchObject({ stage: "disk", cause: "budget" });
  expect(found.advice).toContain("--spool-bytes");
});

test("connections that spend their time on verification", () => {
  expect(verdict({ ...FULL, put: 0.2, verify: 0.75 })).toMatchObject({ stage: "verify", cause: "verify" });
});

test("uploads that fall behind while the spool has room are named before they hold anybody up", () => {
  const busy: Doing = { busy: 0.99, put: 0.95, verify: 0.03 };
  expect(verdict({ ...busy, queue: 40 }).stage).toBe("upload");
  expect(verdict(busy).stage).toBe("compute");
});

test("a pack stage that is always busy", () => {
  expect(verdict({ busy: 0.4, waiting: 0.6, pack: 0.99, put: 0.1 }).stage).toBe("pack");
});

test("engines without a batch, and nobody in their way: no stage is blamed", () => {
  const found = verdict({ busy: 0.6, waiting: 0.4, put: 0.2 });
  expect(found).toMatchObject({ stage: null, cause: "none" });
  expect(found.advice).toContain("40 %");
});

test("a run that loads its model is not blamed either", () => {
  expect(verdict({ busy: 0 })).toMatchObject({ stage: null, cause: "none" });
});

test("before there is a window the verdict is unknown", () => {
  const watch = new BottleneckWatch();
  expect(watch.verdict(CONTEXT)).toMatchObject({ stage: null, cause: "unknown", confidence: 0 });
  watch.look(START);
  watch.look(after(START, 2, FULL));
  expect(watch.verdict(CONTEXT).cause).toBe("unknown");
});

test("the verdict follows a run whose limit moves", () => {
  const watch = new BottleneckWatch();
  let look = START;
  const seen: (string | null)[] = [];
  for (let second = 0; second < 240; second += 1) {
    look = after(look, 1, second < 120 ? { busy: 0.98, waiting: 0.02, put: 0.3 } : FULL);
    watch.look(look);
    seen.push(watch.verdict(CONTEXT).stage);
  }
  expect(seen.slice(10, 120)).toEqual(Array(110).fill("compute"));
  // A whole window after the change at the latest.
  expect(seen.slice(150)).toEqual(Array(90).fill("upload"));
});

test("counters that begin again are not negative time", () => {
  const worked = after(START, 100, FULL);
  const found = findBottleneck(worked, { ...after(START, 30, FULL), atS: 130 }, CONTEXT);
  expect(found.confidence).toBeGreaterThanOrEqual(0);
  expect(found.confidence).toBeLessThanOrEqual(1);
});

test("engine seconds lost are those spent waiting, loading is not; unknown before any worked", () => {
  expect(engineSecondsLost(START.stages)).toBeNull();
  expect(engineSecondsLost(after(START, 10, { busy: 0.5, waiting: 0.3 }).stages)).toBeCloseTo(12);
  expect(engineSecondsLost([])).toBeNull();
});
