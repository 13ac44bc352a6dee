import { mkdirSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { HistoryPoint } from "../run/status.ts";
import { History } from "./history.ts";
import { encodeHistory, readHistory } from "./history-file.ts";

const START_S = 1_764_547_200;
const LATER_S = START_S + 30 * 86_400;
const NOTHING = { run: "", points: [] };

let directory: string;
let path: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-history-"));
  path = join(directory, "history.json");
});
afterEach(() => rmSync(directory, { recursive: true }));

function point(t: number): HistoryPoint {
  return {
    t,
    tokens_per_s: 15_489.1,
    produced_mb_s: 788.123,
    uploaded_mb_s: null,
    spool_bytes: 135_291_000_000,
    s3_p50_ms: 402.123,
    s3_p95_ms: null,
    s3_errors_per_s: 0,
    inflight: 64,
    limit: 64,
    gpu_util: 88.1235,
  };
}

function filled(seconds: number, stepS = 1): History {
  const history = new History();
  for (let s = 0; s < seconds; s += stepS) history.add(point(START_S + s + 0.123));
  return history;
}

test("what is kept is what the charts show, unknown as unknown", () => {
  const history = filled(2_000);
  writeFileSync(path, encodeHistory("4f1c", history));
  expect(readHistory(path, LATER_S)).toEqual({ run: "4f1c", points: history.points() });
});

test("a full history of a week and more stays below two megabytes", () => {
  // A step of eight seconds fills the two coarser tiers as well as one of a second does, in an eighth of the time.
  const history = filled(8 * 86_400, 8);
  expect(history.points().length).toBeGreaterThan(11_000);
  expect(encodeHistory("4f1c", history).length).toBeLessThan(2 * 2 ** 20);
});

test("a file torn anywhere, and one that is not ours, is no past and no error", () => {
  expect(readHistory(path, LATER_S)).toEqual(NOTHING);
  writeFileSync(path, encodeHistory("4f1c", filled(20)));
  const whole = readFileSync(path);
  for (let bytes = 0; bytes < whole.length; bytes += 97) {
    writeFileSync(path, whole);
    truncateSync(path, bytes);
    expect(readHistory(path, LATER_S), `${bytes} bytes`).toEqual(NOTHING);
  }
  const alien = [
    "[]",
    "null",
    "{}",
    '{"version":2,"run":"","columns":{"t":[]}}',
    '{"version":1,"run":"","columns":{"t":[1],"limit":[]}}',
    '{"version":1,"run":"","columns":{"t":["now"]}}',
    '{"version":1,"run":"","columns":{"t":[1],"limit":[{"a":1}]}}',
  ];
  for (const text of alien) {
    writeFileSync(path, text);
    expect(readHistory(path, LATER_S), text).toEqual(NOTHING);
  }
  truncateSync(path, 17 * 2 ** 20);
  expect(readHistory(path, LATER_S)).toEqual(NOTHING);
  rmSync(path);
  mkdirSync(path);
  expect(readHistory(path, LATER_S)).toEqual(NOTHING);
});

test("a column that an older version did not keep is unknown", () => {
  writeFileSync(path, '{"version":1,"run":"4f1c","columns":{"t":[1,2],"limit":[64,null]}}');
  const { points } = readHistory(path, LATER_S);
  expect(points).toHaveLength(2);
  expect(points[0]).toMatchObject({ t: 1, limit: 64, tokens_per_s: null });
});

test("points from the future do not keep those of now out", () => {
  writeFileSync(path, encodeHistory("4f1c", filled(100)));
  const { points } = readHistory(path, START_S + 50);
  expect(points).toHaveLength(50);
  const history = new History();
  history.restore(points);
  history.add(point(START_S + 51));
  expect(history.points().at(-1)?.t).toBe(START_S + 51);
});
