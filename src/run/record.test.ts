import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { crc32c } from "../base/checksum.ts";
import { openStore } from "../store/open.ts";
import type { OpenedStore } from "../store/store.ts";
import {
  assertSameIdentity,
  type Identity,
  parseRunRecord,
  publishRunRecord,
  type RunRecord,
  readRunRecord,
  runIdOf,
} from "./record.ts";

let directory: string;
let store: OpenedStore;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "forebay-record-"));
  store = await openStore({ kind: "directory", directory, name: "run" });
});
afterEach(() => {
  store.close();
  rmSync(directory, { recursive: true });
});

test("a run record is read as it was published, and the first one stands", async () => {
  const first = record({ taps: [1, 3] });
  expect(await publishRunRecord(store, first)).toEqual(first);
  const second = record({ taps: [1, 2] });
  expect(await publishRunRecord(store, second)).toEqual(first);
  expect(await readRunRecord(store)).toEqual(first);
});

test("no run is no record", async () => {
  expect(await readRunRecord(store)).toBeNull();
});

test("another identity is refused with exit 4, each difference named", () => {
  const there = record({ taps: [1, 3] });
  const here = { ...there.identity, taps: [2, 4], weights: "f".repeat(64) };
  expect(() => assertSameIdentity(here, there, "file:x/run")).toThrow(
    expect.objectContaining({
      exit: 4,
      message: expect.stringMatching(/weights.*\n.*taps: stored 1,3, asked 2,4/),
    }),
  );
  expect(() => assertSameIdentity({ ...there.identity }, there, "file:x/run")).not.toThrow();
});

test("facts are not compared", () => {
  const there = { ...record({ taps: [1] }), facts: { host: "elsewhere" } };
  expect(() => assertSameIdentity(record({ taps: [1] }).identity, there, "file:x/run")).not.toThrow();
});

test.each([
  ["no JSON", Buffer.from("{"), 9, /not JSON/],
  ["a missing field", Buffer.from(JSON.stringify({ format: "forebay-run-1" })), 9, /run_id/],
  ["a newer version", Buffer.from(JSON.stringify({ format: "forebay-run-2" })), 78, /newer Forebay/],
  [
    "an identity that was edited by hand",
    Buffer.from(
      JSON.stringify({ ...record({ taps: [1] }), identity: { ...record({ taps: [2] }).identity } }),
    ),
    9,
    /identity's hash/,
  ],
])("a run.json with %s is refused", async (_what, bytes, exit, message) => {
  await store.put("run.json", bytes, { crc32c: crc32c(bytes), createOnly: true });
  await expect(readRunRecord(store)).rejects.toMatchObject({ exit, message: expect.stringMatching(message) });
  expect(() => parseRunRecord(bytes, "x")).toThrow(message);
});

function record({ taps }: { taps: number[] }): RunRecord {
  const identity: Identity = {
    weights: "a".repeat(64),
    config: "b".repeat(64),
    taps,
    dtype: "bfloat16",
    rows: "c".repeat(64),
    plan: "d".repeat(64),
  };
  return {
    format: "forebay-run-1",
    run_id: runIdOf(identity),
    identity,
    numbering: { blocks: taps, vllm: taps, hf: taps, last_state: false, last_state_norm: null },
    files: { rows: "inputs/rows-cccc.safetensors", plan: "plan-dddd.safetensors", attached: [] },
    totals: { rows: 1, planned: 1, skipped: 0, tokens: 1, batches: 1, bytes: 1 },
    store: { endpoint: null, region: null, path_style: null, publish: "create-only", verify: "readback" },
    facts: { host: "here" },
  };
}
