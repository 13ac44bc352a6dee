import { expect, test } from "vitest";
import { BottleneckWatch, engineSecondsLost, findBottleneck, type UploadState } from "./bottleneck.ts";
import type { StageStatus } from "./status.ts";

type Shares = Partial<Record<StageStatus["name"], [busy: number, starved: number, blocked: number]>>;

const NAMES = ["compute", "pack", "disk", "upload", "verify"] as const;
const SLOTS = { compute: 4, pack: 1, disk: 1, upload: 16, verify: 16 };
const CONTEXT = { address: "file:runs/a", engines: 4 };
const IDLE: [number, number, number] = [0.02, 0.98, 0];

const UPLOADS: UploadState = {
  inflight: 16,
  limit: 16,
  auto: true,
  ceiling: 1_000,
  requests: 1_000,
  throttled: 0,
  mbPerS: 120,
};

/** The stages after `seconds` more in which each spent its time by `shares`. */
function after(before: StageStatus[], seconds: number, shares: Shares, queue = 0): StageStatus[] {
  return before.map((stage) => {
    const [busy, starved, blocked] = shares[stage.name] ?? IDLE;
    const all = seconds * stage.slots;
    return {
      ...stage,
      busy: stage.busy + busy * all,
      starved: stage.starved + starved * all,
      blocked: stage.blocked + blocked * all,
      queue: stage.name === "upload" ? queue : stage.queue,
    };
  });
}

const START: StageStatus[] = NAMES.map((name) => ({
  name,
  slots: SLOTS[name],
  busy: 0,
  starved: 0,
  blocked: 0,
  queue: 0,
  capacity: null,
  rate: null,
}));

function verdict(shares: Shares, uploads: Partial<UploadState> = {}, queue = 0) {
  const last = { atS: 30, stages: after(START, 30, shares, queue), uploads: { ...UPLOADS, ...uploads } };
  return findBottleneck({ atS: 0, stages: START, uploads: UPLOADS }, last, CONTEXT);
}

/** The spool is full: engines wait for room that the uploads make. */
const FULL: Shares = { compute: [0.4, 0, 0.6], upload: [0.99, 0.01, 0], disk: [0.05, 0.35, 0.6] };

test("engines that are never held up are the limit, and that is no alarm", () => {
  const found = verdict({ compute: [0.97, 0.03, 0], upload: [0.4, 0.6, 0] });
  expect(found).toMatchObject({ stage: "compute", cause: "engine" });
  expect(found.advice).toContain("nothing holds them up");
});

test("a link that carries no more with more connections", () => {
  const found = verdict(FULL, { limit: 16, auto: true });
  expect(found).toMatchObject({ stage: "upload", cause: "bandwidth" });
  expect(found.advice).toContain("120 MB/s");
  expect(found.advice).toContain("2 of the 4 engines");
  expect(found.confidence).toBe(1);
});

test("a fixed number of connections, all in use: let Forebay find the number", () => {
  const found = verdict(FULL, { auto: false });
  expect(found).toMatchObject({ stage: "upload", cause: "sockets" });
  expect(found.advice).toContain("forebay set file:runs/a uploads=auto");
});

test("the ceiling of connections, and a number still rising, are said as such", () => {
  expect(verdict(FULL, { limit: 1_000, inflight: 1_000 }).advice).toContain("as many as are allowed");
  expect(verdict(FULL, { limit: 32, inflight: 32 }).advice).toContain("rising");
});

test("packs that wait beside unused connections wait for bytes in flight", () => {
  const found = verdict(FULL, { inflight: 4 }, 9);
  expect(found).toMatchObject({ stage: "upload", cause: "sockets" });
  expect(found.advice).toContain("inflight-bytes");
});

test("a store that answers SlowDown is named before anything else about uploads", () => {
  const found = verdict(FULL, { throttled: 40, requests: 1_200, auto: false });
  expect(found).toMatchObject({ stage: "upload", cause: "throttled" });
  expect(found.advice).toContain("uploads=auto");
});

test("one SlowDown in ten thousand requests is not what limits a run", () => {
  expect(verdict(FULL, { throttled: 1, requests: 11_000 }).cause).toBe("bandwidth");
});

test("a disk that takes the states slowly", () => {
  const found = verdict({ compute: [0.3, 0, 0.7], disk: [0.95, 0.05, 0], upload: [0.2, 0.8, 0] });
  expect(found).toMatchObject({ stage: "disk", cause: "fsync" });
  expect(found.advice).toContain("70 %");
});

test("engines that wait for room while nobody is busy making it have too small a budget", () => {
  const found = verdict({ compute: [0.5, 0, 0.5], upload: [0.2, 0.8, 0], verify: [0.1, 0.9, 0] });
  expect(found).toMatchObject({ stage: "disk", cause: "budget" });
  expect(found.advice).toContain("--spool-bytes");
});

test("uploads that wait for their verification", () => {
  const found = verdict({ ...FULL, upload: [0.3, 0, 0.7], verify: [0.98, 0.02, 0] });
  expect(found).toMatchObject({ stage: "verify", cause: "verify" });
});

test("uploads that fall behind while the spool has room are named before they block anybody", () => {
  const shares: Shares = { compute: [0.99, 0.01, 0], upload: [0.98, 0.02, 0] };
  expect(verdict(shares, {}, 40).stage).toBe("upload");
  expect(verdict(shares, {}, 0).stage).toBe("compute");
});

test("a pack stage that is always busy", () => {
  expect(verdict({ compute: [0.4, 0.1, 0.5], pack: [0.97, 0.03, 0] }).stage).toBe("pack");
});

test("nothing is blocked and nothing always busy: no stage is blamed", () => {
  const found = verdict({ compute: [0.6, 0.4, 0], upload: [0.5, 0.5, 0] });
  expect(found).toMatchObject({ stage: null, cause: "none" });
  expect(found.advice).toContain("40 %");
});

test("a run that does nothing is not blamed either", () => {
  expect(verdict({ compute: [0, 1, 0], upload: [0, 1, 0] })).toMatchObject({ stage: null, cause: "none" });
});

test("before there is a window the verdict is unknown", () => {
  const watch = new BottleneckWatch();
  expect(watch.verdict(CONTEXT)).toMatchObject({ stage: null, cause: "unknown", confidence: 0 });
  watch.look({ atS: 0, stages: START, uploads: UPLOADS });
  watch.look({ atS: 2, stages: after(START, 2, FULL), uploads: UPLOADS });
  expect(watch.verdict(CONTEXT).cause).toBe("unknown");
});

test("the verdict follows a run whose limit moves", () => {
  const watch = new BottleneckWatch();
  let stages = START;
  const seen: (string | null)[] = [];
  for (let atS = 0; atS < 240; atS += 1) {
    const shares: Shares = atS < 120 ? { compute: [0.98, 0.02, 0], upload: [0.3, 0.7, 0] } : FULL;
    stages = after(stages, 1, shares);
    watch.look({ atS, stages, uploads: UPLOADS });
    seen.push(watch.verdict(CONTEXT).stage);
  }
  expect(seen.slice(10, 120)).toEqual(Array(110).fill("compute"));
  // A whole window after the change at the latest.
  expect(seen.slice(150)).toEqual(Array(90).fill("upload"));
});

test("a supervisor's counters that begin again are not negative time", () => {
  const worked = after(START, 100, FULL);
  const found = findBottleneck(
    { atS: 0, stages: worked, uploads: UPLOADS },
    { atS: 30, stages: after(START, 30, FULL), uploads: UPLOADS },
    CONTEXT,
  );
  expect(found.confidence).toBeGreaterThanOrEqual(0);
});

test("engine seconds lost are those not spent computing; unknown before any was", () => {
  expect(engineSecondsLost(START)).toBeNull();
  expect(engineSecondsLost(after(START, 10, { compute: [0.5, 0.2, 0.3] }))).toBeCloseTo(20);
  expect(engineSecondsLost([])).toBeNull();
});
