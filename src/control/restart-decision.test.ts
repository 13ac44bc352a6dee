import { describe, expect, test } from "vitest";
import { EXIT } from "../base/errors.ts";
import { exitCodeOf, FRUITLESS_MAX, restartDecision } from "./restart-decision.ts";

const fresh = { everCommitted: false, fruitless: 1 };
const proven = { everCommitted: true, fruitless: 1 };
const decide = (code: number | null, signal: string | null, history = fresh, random = 0.5) =>
  restartDecision({ code, signal }, history, () => random);

describe("ends that last", () => {
  test.each([
    ["done", EXIT.done],
    ["done with skips", EXIT.doneWithSkips],
    ["usage", EXIT.usage],
    ["another identity", EXIT.identity],
    ["locked", EXIT.locked],
    ["engine", EXIT.engine],
    ["disk", EXIT.disk],
    ["integrity", EXIT.integrity],
    ["configuration", EXIT.configuration],
    ["--max-blocked", EXIT.retryLater],
    ["Ctrl-C", EXIT.interrupted],
    ["SIGTERM", EXIT.terminated],
  ])("%s is not restarted, even after commits", (_, code) => {
    expect(decide(code, null, proven).kind).toBe("end");
  });

  test("a death by SIGTERM, SIGINT or SIGHUP was asked for", () => {
    for (const signal of ["SIGTERM", "SIGINT", "SIGHUP"])
      expect(decide(null, signal, proven).kind).toBe("end");
  });
});

describe("ends that pass", () => {
  test.each([
    ["a bug", EXIT.bug, null],
    ["SIGKILL", null, "SIGKILL"],
    ["SIGSEGV", null, "SIGSEGV"],
    ["SIGABRT", null, "SIGABRT"],
    ["an unknown code", 99, null],
  ])("%s is restarted", (_, code, signal) => {
    expect(decide(code, signal).kind).toBe("restart");
  });

  test("store trouble is a person's before the first commit, and the weather's after it", () => {
    expect(decide(EXIT.store, null, fresh).kind).toBe("end");
    expect(decide(EXIT.store, null, proven).kind).toBe("restart");
  });

  test("a supervisor that never gets anything done is given up, one that commits between its deaths is not", () => {
    expect(decide(null, "SIGKILL", { everCommitted: true, fruitless: FRUITLESS_MAX }).kind).toBe("end");
    expect(decide(null, "SIGKILL", { everCommitted: true, fruitless: FRUITLESS_MAX - 1 }).kind).toBe(
      "restart",
    );
  });

  test("the wait grows with fruitless deaths, is jittered, and is never over a minute", () => {
    const wait = (fruitless: number, random: number) => {
      const decision = decide(1, null, { everCommitted: true, fruitless }, random);
      return decision.kind === "restart" ? decision.afterMs : Number.NaN;
    };
    expect([wait(1, 1), wait(2, 1), wait(3, 1)]).toEqual([1_000, 2_000, 4_000]);
    expect(wait(3, 0.25)).toBe(1_000);
    expect(wait(FRUITLESS_MAX - 1, 1)).toBeLessThanOrEqual(60_000);
  });
});

test("a signal stands for 128 + n, as in a shell", () => {
  expect(exitCodeOf({ code: null, signal: "SIGKILL" })).toBe(137);
  expect(exitCodeOf({ code: 3, signal: null })).toBe(3);
});
