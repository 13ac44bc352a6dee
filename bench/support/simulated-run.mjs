/**
 * A whole run as a list of dated events, computed and not waited for: samples of skewed lengths, engines that pull
 * batches, a spool that fills, a link of one speed. What `bench eta` and the tests of the ETA replay, beside
 * recorded runs. Deterministic for a seed.
 */

/** @param {number} seed */
export function randomFrom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** @param {() => number} random */
function normal(random) {
  return Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
}

/**
 * @param {import("./simulated-run.mjs").SimulatedRun} options
 * @returns {import("./simulated-run.mjs").Recording}
 */
export function simulateRun(options) {
  const {
    seed,
    samples = 20_000,
    medianTokens = 250,
    lengthSpread = 0.7,
    tokensMax = 4_096,
    batchTokens = 1_280,
    bytesAToken = 51_200,
    order = "shuffled",
    engines = 4,
    slots = 2,
    tokensPerS = 4_000,
    attentionShare = 2e-5,
    noise = 0.08,
    wander = 0.03,
    sampleTokens = 0,
    uplinkBytesPerS = 2e9,
    spoolBytes = 4e9,
    engineLostAt = null,
  } = options;
  const random = randomFrom(seed);
  const lengths = Array.from({ length: samples }, () =>
    Math.max(8, Math.min(tokensMax, Math.round(medianTokens * Math.exp(lengthSpread * normal(random))))),
  ).sort((a, b) => b - a);
  let batches = batchesOf(lengths, batchTokens);
  if (order === "shuffled")
    batches = [...batches.slice(0, engines), ...shuffled(batches.slice(engines), random)];

  const totalTokens = batches.reduce((sum, batch) => sum + batch.tokens, 0);
  const events = [];
  let [spooled, linkFreeS, linkBusyS, blockedSlotS, tokensOut] = [0, 0, 0, 0, 0];
  let [wandering, linkWandering] = [0, 0];
  /** When spool bytes come free, in order. */
  const releases = [];
  const free = Array.from({ length: engines }, (_, engine) => ({ engine, atS: 20 + random() }));
  for (const batch of batches) {
    free.sort((a, b) => a.atS - b.atS);
    const engine = free[0];
    const bytes = batch.tokens * bytesAToken;
    let startS = engine.atS;
    while (spooled + bytes > spoolBytes && releases.length > 0) {
      const release = releases.shift();
      spooled -= release.bytes;
      startS = Math.max(startS, release.atS);
    }
    while (releases.length > 0 && releases[0].atS <= startS) spooled -= releases.shift().bytes;
    blockedSlotS += startS - engine.atS;
    wandering = drifted(wandering, wander, random);
    linkWandering = drifted(linkWandering, wander, random);
    if (engineLostAt !== null && tokensOut > engineLostAt * totalTokens && free.length === engines) {
      free.pop();
    }
    const cost = batch.tokens + attentionShare * batch.tokensSquared + sampleTokens * batch.samples;
    const linear = cost / tokensPerS;
    const endS = startS + linear * Math.exp(noise * normal(random) + wandering);
    engine.atS = endS;
    tokensOut += batch.tokens;
    spooled += bytes;
    const sendS = (bytes / uplinkBytesPerS) * Math.exp(noise * normal(random) + linkWandering);
    linkFreeS = Math.max(linkFreeS, endS) + sendS;
    linkBusyS += sendS;
    releases.push({ atS: linkFreeS + 0.2, bytes });
    events.push({ kind: "computed", atS: endS, ...batch, bytes, blockedS: blockedSlotS / engines });
    const starvedS = Math.max(0, linkFreeS - 20 - linkBusyS);
    events.push({ kind: "verified", atS: linkFreeS + 0.2, bytes, starvedS });
  }
  events.sort((a, b) => a.atS - b.atS);
  return {
    startS: 20,
    slots: engines * slots,
    attentionShare,
    totals: {
      tokens: totalTokens,
      tokensSquared: batches.reduce((sum, batch) => sum + batch.tokensSquared, 0),
      bytes: totalTokens * bytesAToken,
    },
    events,
  };
}

/** Slow changes that come and go: heat, neighbours. */
function drifted(value, wander, random) {
  return 0.98 * value + wander * Math.sqrt(1 - 0.98 ** 2) * normal(random);
}

function batchesOf(lengths, batchTokens) {
  const batches = [];
  let current = { samples: 0, tokens: 0, tokensSquared: 0 };
  for (const length of lengths) {
    if (current.tokens > 0 && current.tokens + length > batchTokens) {
      batches.push(current);
      current = { samples: 0, tokens: 0, tokensSquared: 0 };
    }
    current.samples += 1;
    current.tokens += length;
    current.tokensSquared += length * length;
  }
  batches.push(current);
  return batches;
}

function shuffled(items, random) {
  const copy = [...items];
  for (let i = copy.length - 1; i > 0; i -= 1) {
    const j = Math.floor(random() * (i + 1));
    [copy[i], copy[j]] = [copy[j], copy[i]];
  }
  return copy;
}

/**
 * Replays a recording through the estimator.
 * @param {import("./simulated-run.mjs").Recording} recording
 * @param {import("./simulated-run.mjs").Estimator} estimator
 */
export function replay(recording, { EtaLog, estimateEta }) {
  const { startS, slots, attentionShare, totals, events } = recording;
  const endS = events.at(-1).atS;
  const log = new EtaLog(startS);
  const left = { ...totals };
  const looks = [];
  for (const event of events) {
    if (event.kind === "computed") {
      log.batchComputed(event.atS, event, event.blockedS);
      left.tokens -= event.tokens;
      left.tokensSquared -= event.tokensSquared;
    } else {
      log.packVerified(event.atS, event.bytes, event.starvedS);
      left.bytes -= event.bytes;
    }
    const done = 1 - left.bytes / totals.bytes;
    if (looks.length > 0 && done < looks.at(-1).done + 0.002) continue;
    const eta = estimateEta({
      nowS: event.atS,
      nowMs: event.atS * 1_000,
      log,
      toCompute: { tokens: left.tokens, tokensSquared: left.tokensSquared },
      bytesToVerify: left.bytes,
      slots,
      attentionShare,
    });
    looks.push({ done, trueS: endS - event.atS, elapsedS: event.atS - startS, eta });
  }
  return looks;
}
