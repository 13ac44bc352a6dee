import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { fullJitterMs, sleep } from "./backoff.ts";
import { formatBytes, parseBytes, roundUp } from "./bytes.ts";
import { eachOf } from "./each.ts";
import { describeError, errnoOf, RunError } from "./errors.ts";
import { type LogEvent, makeLog, plainText } from "./log.ts";
import { publishNew, publishReplacing } from "./publish.ts";
import { Stage } from "./stage.ts";

const directories: string[] = [];
afterEach(() => {
  for (const directory of directories.splice(0)) rmSync(directory, { recursive: true });
});

test.each([
  ["64MiB", 2 ** 26],
  ["200GiB", 200 * 2 ** 30],
  ["1.5 TB", 1.5e12],
  ["4096", 4096],
  ["10k", 10_000],
])("%s is %i bytes", (text, bytes) => {
  expect(parseBytes(text, "--spool-bytes")).toBe(bytes);
});

test.each(["", "12 parsecs", "-5GiB", "1e9", "MiB"])(
  "the size %j is refused, naming the setting and the units",
  (text) => {
    expect(() => parseBytes(text, "--spool-bytes")).toThrow(
      expect.objectContaining({ subject: "--spool-bytes", exit: 2, hint: expect.stringContaining("GiB") }),
    );
  },
);

test("sizes are shown in binary units", () => {
  expect([0, 1023, 2 ** 26, 1.5 * 2 ** 40].map(formatBytes)).toEqual([
    "0 B",
    "1023 B",
    "64.0 MiB",
    "1.50 TiB",
  ]);
  expect(roundUp(65, 64)).toBe(128);
});

test("a full-jitter delay is below the cap and below the doubling bound", () => {
  fc.assert(
    fc.property(fc.nat({ max: 60 }), fc.double({ min: 0, max: 0.999, noNaN: true }), (attempt, random) => {
      const ms = fullJitterMs(attempt, { baseMs: 100, capMs: 20_000, random: () => random });
      expect(ms).toBeGreaterThanOrEqual(0);
      expect(ms).toBeLessThan(Math.min(20_000, 100 * 2 ** attempt));
    }),
  );
});

test("a sleep ends with the reason of the signal that cut it short", async () => {
  const abort = new AbortController();
  const slept = sleep(60_000, abort.signal);
  abort.abort(new Error("enough"));
  await expect(slept).rejects.toThrow("enough");
  await expect(sleep(1, abort.signal)).rejects.toThrow("enough");
});

test("a publish creates once, leaves what is there, and leaves no temporary", () => {
  const directory = scratch();
  const path = join(directory, "a");
  expect(publishNew(path, Buffer.from("one"))).toBe(true);
  expect(publishNew(path, [Buffer.from("tw"), Buffer.from("o")])).toBe(false);
  expect(readFileSync(path, "utf8")).toBe("one");
  publishReplacing(path, Buffer.from("three"));
  expect(readFileSync(path, "utf8")).toBe("three");
  expect(readdirSync(directory)).toEqual(["a"]);
});

test("a publish that fails leaves nothing behind", () => {
  const directory = scratch();
  const broken = [Buffer.from("x"), null as unknown as Buffer];
  expect(() => publishNew(join(directory, "a"), broken)).toThrow();
  expect(readdirSync(directory)).toEqual([]);
});

test("a stage's seconds are kept by slot and state, and outlive the slot", () => {
  let nowMs = 0;
  const stage = new Stage("compute", () => nowMs);
  stage.enter("0", "busy");
  stage.enter("1", "starved");
  nowMs = 2000;
  stage.enter("0", "blocked");
  nowMs = 5000;
  stage.remove("0");
  nowMs = 6000;
  stage.add({ busy: 10 });
  expect(stage.seconds()).toEqual({ busy: 12, starved: 6, blocked: 3 });
  expect(stage.slots).toBe(1);
});

test("a log event carries its name and fields, made harmless", () => {
  const events: LogEvent[] = [];
  const log = makeLog([(event) => events.push(event)], () => 0);
  log.warn("engine.stderr", { text: "\u001b[31mred\u001b[0m \u202eevil\u0007", rows: 3 });
  expect(events).toEqual([
    { at: "1970-01-01T00:00:00.000Z", level: "warn", event: "engine.stderr", text: "red evil", rows: 3 },
  ]);
});

test("a field cannot pass itself off as the event's own name or time", () => {
  const events: LogEvent[] = [];
  makeLog([(event) => events.push(event)], () => 0).info("real", { event: "forged", level: "error" });
  expect(events[0]).toMatchObject({ event: "real", level: "info" });
});

test("plain text has no ANSI, control or bidirectional characters, and is cut", () => {
  expect(plainText("\u001b]0;title\u0007a\u2066b\u009bc")).toBe("abc");
  expect(plainText("x".repeat(50), 10)).toBe(`${"x".repeat(10)}…`);
});

test("items are worked on so many at a time, and a failure ends the rest but waits for what runs", async () => {
  let running = 0;
  let most = 0;
  const done: number[] = [];
  const work = async (item: number) => {
    running += 1;
    most = Math.max(most, running);
    await sleep(5);
    running -= 1;
    if (item === 4) throw new Error("item 4");
    done.push(item);
  };
  await eachOf([0, 1, 2, 3], 3, work);
  expect(most).toBe(3);
  await expect(eachOf([3, 4, 5, 6, 7, 8], 2, work)).rejects.toThrow("item 4");
  expect(running).toBe(0);
  expect(done).not.toContain(8);
});

test("an error says what it was and what was beneath it", () => {
  const error = new RunError({ op: "put", subject: "k", message: "no answer", cause: new Error("reset") });
  expect(describeError(error)).toBe("no answer: reset");
  expect(error).toMatchObject({ remedy: "stop", exit: 1 });
  expect(errnoOf(Object.assign(new Error("x"), { code: "ENOSPC" }))).toBe("ENOSPC");
  expect(errnoOf("x")).toBeUndefined();
});

function scratch(): string {
  const directory = mkdtempSync(join(tmpdir(), "forebay-base-"));
  directories.push(directory);
  return directory;
}
