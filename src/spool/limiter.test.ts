import { describe, expect, it } from "vitest";
import { Limiter } from "./limiter.ts";

/**
 * A link with a hand-wound clock: `connections` packs at a time, each connection carries `eachMBs` until the link's
 * `linkMBs` is shared among them.
 */
function run(
  limiter: Limiter,
  link: { eachMBs: number; linkMBs: number },
  seconds: number,
  fromMs = 0,
): number {
  const packMB = 64;
  let nowMs = fromMs;
  const endMs = fromMs + seconds * 1000;
  while (nowMs < endMs) {
    const connections = limiter.limit;
    const rate = Math.min(connections * link.eachMBs, link.linkMBs);
    nowMs += (packMB / rate) * 1000;
    limiter.observe(nowMs, true);
    limiter.completed(nowMs, packMB * 1e6);
  }
  return nowMs;
}

describe("Limiter", () => {
  it("climbs to what a long fat link wants: 180 connections of 20 MB/s", () => {
    const limiter = new Limiter({ auto: true, start: 8, max: 1000 });
    run(limiter, { eachMBs: 20, linkMBs: 3_600 }, 120);
    expect(limiter.limit).toBeGreaterThanOrEqual(160);
    expect(limiter.limit).toBeLessThanOrEqual(300);
  });

  it("settles low where a few connections fill the link, and stays there", () => {
    const limiter = new Limiter({ auto: true, start: 8, max: 1000 });
    const seen: number[] = [];
    for (let t = 0, at = 0; t < 20; t += 1) {
      at = run(limiter, { eachMBs: 500, linkMBs: 1_000 }, 10, at);
      seen.push(limiter.limit);
    }
    expect(Math.max(...seen)).toBeLessThanOrEqual(16);
  });

  it("does not climb while work is short, however fast that work goes", () => {
    const limiter = new Limiter({ auto: true, start: 8, max: 1000 });
    for (let ms = 0; ms < 60_000; ms += 100) limiter.completed(ms, 64e6);
    expect(limiter.limit).toBe(8);
  });

  it("halves once for a burst of throttled answers, and again for the next burst", () => {
    const limiter = new Limiter({ auto: true, start: 64, max: 1000 });
    for (let i = 0; i < 50; i += 1) limiter.throttled(10_000 + i);
    expect(limiter.limit).toBe(32);
    limiter.throttled(12_000);
    expect(limiter.limit).toBe(16);
  });

  it("never goes below one connection nor above its ceiling", () => {
    const limiter = new Limiter({ auto: true, start: 4, max: 10 });
    for (let i = 0; i < 10; i += 1) limiter.throttled(i * 5_000);
    expect(limiter.limit).toBe(1);
    const steep = new Limiter({ auto: true, start: 4, max: 10 });
    run(steep, { eachMBs: 1, linkMBs: 10_000 }, 2_000);
    expect(steep.limit).toBe(10);
  });

  it("backs off from a number that a person gave, and climbs back to it", () => {
    const limiter = new Limiter({ auto: false, start: 100, max: 100 });
    expect(limiter.limit).toBe(100);
    limiter.throttled(0);
    expect(limiter.limit).toBe(50);
    run(limiter, { eachMBs: 5, linkMBs: 100 }, 1_000);
    expect(limiter.limit).toBe(100);
  });
});
