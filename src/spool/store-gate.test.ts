import { beforeEach, describe, expect, it } from "vitest";
import { StoreGate } from "./store-gate.ts";

let gate: StoreGate;
beforeEach(() => {
  gate = new StoreGate({ reprobeMs: 60_000, backoff: { baseMs: 250, capMs: 10_000 }, random: () => 0.5 });
});
const fail = (nowMs: number, isProbe = false) => gate.failed(nowMs, "connection refused", isProbe);

describe("StoreGate", () => {
  it("closes at the third failure in a row, not at three failures between successes", () => {
    for (let i = 0; i < 10; i += 1) {
      expect([fail(0), fail(0), gate.served(false)]).toEqual([null, null, null]);
    }
    expect([fail(0), fail(0), fail(0)]).toEqual([null, null, "down"]);
    expect(gate.state).toBe("down");
  });

  it("probes ever more slowly, but at least every 10 s, so that the full rate is back soon after the store", () => {
    for (let i = 0; i < 3; i += 1) fail(0);
    let nowMs = 0;
    const delays: number[] = [];
    for (let i = 0; i < 12; i += 1) {
      delays.push(gate.notBeforeMs - nowMs);
      nowMs = gate.notBeforeMs;
      fail(nowMs, true);
    }
    expect(delays.every((delay, i) => i === 0 || delay >= delays[i - 1]!)).toBe(true);
    expect(delays.at(-1)).toBeLessThanOrEqual(10_000);
  });

  it("does not slow its probes by the failures of what was already under way", () => {
    for (let i = 0; i < 3; i += 1) fail(0);
    const due = gate.notBeforeMs;
    for (let i = 0; i < 100; i += 1) fail(10);
    expect(gate.notBeforeMs).toBe(due);
  });

  it("a down store is up with the first success of any attempt", () => {
    for (let i = 0; i < 3; i += 1) fail(0);
    expect([gate.served(false), gate.state, gate.notBeforeMs]).toEqual(["up", "ok", 0]);
  });

  it("a blocked store is unblocked by a probe only: older attempts prove nothing", () => {
    expect(gate.blocked(0, "expired token")).toBe("blocked");
    expect([gate.served(false), gate.state]).toEqual([null, "blocked"]);
    expect(gate.blocked(60_000, "expired token")).toBeNull();
    expect(gate.notBeforeMs).toBe(120_000);
    expect(gate.blocked(60_000, "no such bucket")).toBe("blocked");
    expect([gate.served(true), gate.state]).toEqual(["unblocked", "ok"]);
  });

  it("a blocked store that goes down meanwhile is still probed at its own pace", () => {
    gate.blocked(0, "expired token");
    expect(fail(60_000, true)).toBeNull();
    expect([gate.state, gate.notBeforeMs]).toEqual(["blocked", 120_000]);
  });
});
