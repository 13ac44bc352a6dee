import { describe, expect, it } from "vitest";
import { RunError } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import { delayAfter, withRetries } from "./retry.ts";
import { StoreError, type StoreErrorKind } from "./store.ts";

const failure = (kind: StoreErrorKind, retryAfterMs?: number) =>
  new StoreError({ kind, op: "put object", subject: "x", message: "failed", retryAfterMs });
const options = { log: silentLog, random: () => 0 };

describe("withRetries", () => {
  it("tries again what passes by itself, and returns what came at last", async () => {
    let calls = 0;
    const told: number[] = [];
    const attempt = async () => {
      calls += 1;
      if (calls < 4) throw failure("throttled");
      return "done";
    };
    expect(await withRetries(attempt, { ...options, onRetry: (_, delayMs) => told.push(delayMs) })).toBe(
      "done",
    );
    expect([calls, told]).toEqual([4, [0, 0, 0]]);
  });

  it.each(["credentials", "denied", "clock", "no-bucket", "not-a-store", "full", "unsupported"] as const)(
    "throws %s at once",
    async (kind) => {
      let calls = 0;
      const error = failure(kind);
      const attempt = async () => {
        calls += 1;
        throw error;
      };
      await expect(withRetries(attempt, options)).rejects.toBe(error);
      expect(calls).toBe(1);
    },
  );

  it("throws a bug at once", async () => {
    const bug = new TypeError("x is not a function");
    await expect(withRetries(() => Promise.reject(bug), options)).rejects.toBe(bug);
  });

  it("ends with the last error when its time is up, before a wait that would outlast it", async () => {
    let nowMs = 0;
    let calls = 0;
    const attempt = async () => {
      calls += 1;
      nowMs += 40;
      throw failure("unavailable");
    };
    const call = withRetries(attempt, { ...options, deadlineMs: 100, nowMs: () => nowMs });
    await expect(call).rejects.toMatchObject({ kind: "unavailable" });
    expect(calls).toBe(3);
    const patient = withRetries(() => Promise.reject(failure("throttled", 60_000)), {
      ...options,
      deadlineMs: 1_000,
    });
    await expect(patient).rejects.toMatchObject({ retryAfterMs: 60_000 });
  });

  it("stops waiting when aborted, with the caller's reason", async () => {
    const abort = new AbortController();
    const reason = new Error("stop");
    const call = withRetries(() => Promise.reject(failure("throttled", 60_000)), {
      ...options,
      signal: abort.signal,
      onRetry: () => queueMicrotask(() => abort.abort(reason)),
    });
    await expect(call).rejects.toBe(reason);
  });
});

describe("the delay", () => {
  it("grows, is capped, and is never less than Retry-After", () => {
    const random = () => 0.999;
    const delays = [0, 1, 2, 3, 20].map((failures) =>
      Math.round(delayAfter(failure("throttled"), failures, random)),
    );
    expect(delays).toEqual([200, 400, 799, 1598, 9990]);
    expect(delayAfter(failure("throttled", 7_000), 0, () => 0)).toBe(7_000);
    expect(delayAfter(new RunError({ op: "", subject: "", message: "" }), 0, () => 0)).toBe(0);
  });
});
