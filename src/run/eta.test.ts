import { expect, test } from "vitest";
import { readRecordings } from "../../bench/support/recordings.mjs";
import { replay, type SimulatedRun, simulateRun } from "../../bench/support/simulated-run.mjs";
import { EtaLog, estimateEta } from "./eta.ts";

/** Of the whole run's time: what matters to someone who waits for its end. */
function worstOf(options: Omit<SimulatedRun, "seed">, fromShare: number) {
  let [error, looks, inBand] = [0, 0, 0];
  for (let seed = 1; seed <= 5; seed += 1) {
    const recording = simulateRun({ samples: 8_000, ...options, seed });
    for (const { done, trueS, elapsedS, eta } of replay(recording, { EtaLog, estimateEta })) {
      if (done < fromShare || done > 0.97 || eta.p50_s === null) continue;
      error = Math.max(error, Math.abs(eta.p50_s - trueS) / (elapsedS + trueS));
      looks += 1;
      if (trueS >= eta.p10_s! && trueS <= eta.p90_s!) inBand += 1;
    }
  }
  expect(looks).toBeGreaterThan(500);
  return { error, inBand: inBand / looks };
}

const SLOW = { tokensPerS: 1_000 };

test.each<[string, Omit<SimulatedRun, "seed">]>([
  ["shuffled, the engines the limit", SLOW],
  ["longest first, the engines the limit", { ...SLOW, order: "longest-first" }],
  [
    "longest first with much attention",
    { ...SLOW, order: "longest-first", attentionShare: 4e-4, tokensMax: 2_048 },
  ],
  ["longest first with a cost a sample", { ...SLOW, order: "longest-first", sampleTokens: 20 }],
  ["shuffled, the link the limit", { ...SLOW, uplinkBytesPerS: 8e7 }],
  ["longest first, the link the limit", { ...SLOW, order: "longest-first", uplinkBytesPerS: 8e7 }],
])("%s: a tenth off at most after 15 of 100 tokens, and the band true from 10 on", (_, options) => {
  expect(worstOf(options, 0.15).error).toBeLessThan(0.1);
  expect(worstOf(options, 0.1).inBand).toBeGreaterThan(0.97);
});

test("a run that lost an engine finds its new end", () => {
  const recording = simulateRun({ seed: 3, samples: 20_000, ...SLOW, engineLostAt: 0.3 });
  const looks = replay(recording, { EtaLog, estimateEta });
  const late = looks.find(({ done }) => done > 0.75)!;
  expect(Math.abs(late.eta.p50_s! / late.trueS - 1)).toBeLessThan(0.15);
});

function logOf(batches: number, everyS = 20): EtaLog {
  const log = new EtaLog(100);
  for (let i = 1; i <= batches; i += 1) {
    log.batchComputed(100 + i * everyS, { tokens: 1_000, tokensSquared: 300_000 }, 0);
    log.packVerified(100 + i * everyS + 1, 64e6, (i - 1) * (everyS - 1));
  }
  return log;
}

function etaOf(log: EtaLog, nowS: number, batchesLeft = 10) {
  return estimateEta({
    nowS,
    nowMs: 1_764_547_200_000,
    log,
    toCompute: { tokens: batchesLeft * 1_000, tokensSquared: batchesLeft * 300_000 },
    bytesToVerify: batchesLeft * 64e6,
    slots: 1,
  });
}

// Recorded on a machine with neighbours: in two of them it was slower for a while.
test.each(readRecordings())("of a real run, $name, it is right", ({ recording }) => {
  const looks = replay(recording, { EtaLog, estimateEta }).filter(
    ({ done, eta }) => done < 0.98 && eta.p50_s !== null,
  );
  const outside = looks.filter(
    ({ done, trueS, eta }) => done >= 0.1 && (trueS < eta.p10_s! || trueS > eta.p90_s!),
  );
  const errors = looks
    .filter(({ done }) => done >= 0.15)
    .map(({ trueS, elapsedS, eta }) => Math.abs(eta.p50_s! - trueS) / (elapsedS + trueS));
  expect(errors.length).toBeGreaterThan(100);
  expect(Math.max(...errors)).toBeLessThan(0.1);
  expect(outside).toEqual([]);
});

test("the real runs are there", () => {
  expect(readRecordings()).toHaveLength(3);
});

test("there is no estimate before five batches and a minute, and it says what it waits for", () => {
  const four = etaOf(logOf(4), 200);
  expect([four.p10_s, four.p50_s, four.p90_s, four.finish_at]).toEqual([null, null, null, null]);
  expect(four.reason).toBe("measuring: 4 of 5 batches");
  expect(etaOf(logOf(8, 5), 150)).toMatchObject({ p50_s: null, reason: "measuring: 50 of 60 s" });
  expect(etaOf(logOf(8), 270).p50_s).toBeCloseTo(200, 0);
});

test("a fresh log after a resume gives no estimate from another machine's speed", () => {
  expect(etaOf(new EtaLog(1_000), 1_030).reason).toBe("measuring: 0 of 5 batches, 30 of 60 s");
});

test("the finish is the reader's clock plus the median, and a finished run has none of it left", () => {
  const eta = etaOf(logOf(8), 270);
  expect(Date.parse(eta.finish_at!)).toBeCloseTo(1_764_547_200_000 + eta.p50_s! * 1_000, -1);
  const done = etaOf(logOf(8), 270, 0);
  expect([done.p10_s, done.p50_s, done.p90_s, done.reason]).toEqual([0, 0, 0, "done"]);
});

test("p10 <= p50 <= p90, and the side that bounds it is named", () => {
  const compute = etaOf(logOf(20), 510);
  expect(compute.p10_s!).toBeLessThan(compute.p50_s!);
  expect(compute.p50_s!).toBeLessThan(compute.p90_s!);
  expect(compute.reason).toBe("compute");

  const log = new EtaLog(100);
  for (let i = 1; i <= 20; i += 1) {
    log.batchComputed(100 + i * 2, { tokens: 1_000, tokensSquared: 300_000 }, 0);
    log.packVerified(100 + i * 10, 64e6, 0);
  }
  const upload = etaOf(log, 301, 30);
  expect(upload.reason).toBe("upload");
  expect(upload.p50_s!).toBeCloseTo(300, -1);
});

test("when nothing has been finished for long the past is no guide", () => {
  const log = logOf(8);
  expect(etaOf(log, 300).p50_s).not.toBeNull();
  expect(etaOf(log, 800)).toMatchObject({ p50_s: null, reason: "no batch finished for 539 s" });
});

test("time in which the engines were held up does not count as their speed", () => {
  const log = new EtaLog(0);
  for (let i = 1; i <= 20; i += 1) {
    log.batchComputed(i * 30, { tokens: 1_000, tokensSquared: 300_000 }, i * 20);
    log.packVerified(i * 30, 64e6, 0);
  }
  // The engines alone would need 10 s a batch; the link needs 30.
  expect(etaOf(log, 601)).toMatchObject({ reason: "upload" });
  expect(etaOf(log, 601).p50_s!).toBeCloseTo(300, -1);
});

test("a million batches cost no more memory than a thousand", () => {
  const log = new EtaLog(0);
  for (let i = 1; i <= 100_000; i += 1) log.batchComputed(i, { tokens: 10, tokensSquared: 100 }, 0);
  expect(log.computed.length).toBeLessThanOrEqual(512);
  expect(log.computed.reduce((sum, mark) => sum + mark.batches, 0)).toBe(100_000);
  expect(log.computed.at(-1)!.primary).toBe(1_000_000);
});
