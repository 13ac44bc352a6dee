import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import { silentLog } from "../base/log.ts";
import { statusKey } from "../store/keys.ts";
import { openStore } from "../store/open.ts";
import type { OpenedStore } from "../store/store.ts";
import { Heartbeat } from "./heartbeat.ts";
import type { RunState } from "./status.ts";

const PART = { index: 1, count: 1 };
let directory: string;
let store: OpenedStore;
let nowMs: number;
let state: RunState;
let puts: number;
let heartbeat: Heartbeat;

beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "forebay-heartbeat-"));
  store = await openStore({ kind: "directory", directory: join(directory, "store"), name: "run" });
  [nowMs, state, puts] = [0, "starting", 0];
  const counted = new Proxy(store, {
    get: (target, name) => {
      if (name === "put") puts += 1;
      const value = Reflect.get(target, name);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
  heartbeat = new Heartbeat({
    store: counted,
    part: PART,
    intervalS: 3_600,
    document: () => scriptedRun({ nowMs: () => 0, state }).snapshot(),
    log: silentLog,
    nowMs: () => nowMs,
  });
});
afterEach(async () => {
  await heartbeat.end();
  store.close();
  rmSync(directory, { recursive: true });
});

async function toldState(): Promise<string> {
  const bytes = await store.get(statusKey(PART), null);
  return bytes === null ? "nothing" : JSON.parse(bytes.toString()).run.state;
}

test("a change of state is told before the next minute, one that stays is not told again", async () => {
  await vi.waitFor(async () => expect(await toldState()).toBe("starting"));
  nowMs = 10_000;
  state = "running";
  for (let look = 0; look < 5; look += 1) heartbeat.look(state);
  await vi.waitFor(async () => expect(await toldState()).toBe("running"));
  for (; nowMs < 60_000; nowMs += 1_000) heartbeat.look(state);
  await heartbeat.end();
  // At the start, at the change, and at the end.
  expect(puts).toBe(3);
});

test("a state that flickers costs a request each five seconds at most", async () => {
  await vi.waitFor(async () => expect(await toldState()).toBe("starting"));
  for (nowMs = 0; nowMs < 20_000; nowMs += 1_000) {
    state = state === "running" ? "degraded" : "running";
    heartbeat.look(state);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  await heartbeat.end();
  expect(puts).toBeLessThanOrEqual(6);
  expect(puts).toBeGreaterThanOrEqual(3);
});
