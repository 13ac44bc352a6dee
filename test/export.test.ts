import { existsSync, readdirSync, readFileSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { parseHeader } from "../src/base/safetensors.ts";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { packHashesDirectory, writeRows } from "./support/kills.ts";
import { type Ended, FIXTURES, Machine } from "./support/program.ts";
import { readPacks } from "./support/read-packs.ts";

/** The files that `forebay export` writes; that speculators itself reads them is test/long/speculators.test.ts. */

const ROWS = 40;

let machine: Machine;
let address: string;
beforeAll(async () => {
  machine = new Machine();
  writeRows(machine, ROWS, mulberry32(3));
  address = `file:${machine.path("store")}/run`;
  expect(await extract("run", "1,3,5")).toMatchObject({ code: 0 });
});
afterAll(() => machine?.remove());

/** random-qwen3 has six blocks. */
function extract(name: string, taps: string, ...more: string[]): Promise<Ended> {
  return machine.run([
    ...["run", `file:${machine.path("store")}/${name}`, "--model", join(FIXTURES, "models/random-qwen3")],
    ...["--dataset", machine.path("rows.jsonl"), "--taps", taps, "--pack-bytes", "48KiB"],
    ...["--run-dir", machine.path(`run-${name}`), "--disk-floor", "1MiB", "--port", "0"],
    ...["--progress", "quiet", "--no-gate", ...more],
  ]);
}

async function exported(
  from: string,
  to: string,
): Promise<{ code: number | null; stderr: string; result: unknown }> {
  const words = ["export", from, machine.path(to), "--as", "speculators", "--json"];
  const { code, stdout, stderr } = await machine.run(words);
  return { code, stderr, result: stdout === "" ? null : JSON.parse(stdout) };
}

test("every row is a file of its ids and states, byte for byte as its pack holds them; what is whole is kept", async () => {
  const first = await exported(address, "states");
  expect(first.code, first.stderr).toBe(0);
  expect(first.result).toMatchObject({ written: ROWS, kept: 0, skipped: 0, missing: 0 });
  const packs = readPacks(machine.path("store/run/packs"));
  for (let row = 0; row < ROWS; row += 1) {
    const path = machine.path("states", `hs_${row}.safetensors`);
    const bytes = readFileSync(path);
    const { tensors } = parseHeader(bytes, path, bytes.length);
    const data = (name: string) => {
      const { startByte, endByte } = tensors.get(name)!;
      return Uint8Array.from(bytes.subarray(startByte, endByte)).buffer;
    };
    const { ids, states } = packs.get(row)!;
    expect(Array.from(new BigInt64Array(data("token_ids")), Number)).toEqual(ids);
    expect(tensors.get("hidden_states")).toMatchObject({ dtype: "BF16", shape: [ids.length, 3, 64] });
    expect(Buffer.from(data("hidden_states")).equals(Buffer.from(states.buffer))).toBe(true);
  }
  truncateSync(machine.path("states/hs_7.safetensors"), 100);
  const again = await exported(address, "states");
  expect(again).toMatchObject({ code: 0, result: { written: 1, kept: ROWS - 1 } });
});

test("a run without its last block is refused with the reason, and nothing is written", async () => {
  expect(await extract("no-last", "1,3")).toMatchObject({ code: 0 });
  const { code, stderr } = await exported(`file:${machine.path("store")}/no-last`, "none");
  expect(code).toBe(2);
  expect(stderr).toContain("needs the last block's output");
  expect(existsSync(machine.path("none"))).toBe(false);
});

test("what is not extracted yet is counted, and the same command goes on with it later", async () => {
  expect(await extract("half", "1,5", "--part", "1/2")).toMatchObject({ code: 0 });
  const half = await exported(`file:${machine.path("store")}/half`, "half");
  const { written, missing } = half.result as { written: number; missing: number };
  expect(half.code).toBe(75);
  expect([written > 0, missing > 0, written + missing]).toEqual([true, true, ROWS]);
  expect(readdirSync(machine.path("half")).length).toBe(written);
  expect(await extract("half", "1,5", "--part", "2/2")).toMatchObject({ code: 0 });
  const whole = await exported(`file:${machine.path("store")}/half`, "half");
  expect(whole).toMatchObject({ code: 0, result: { written: missing, kept: written } });
});

test("a pack whose bytes have changed is named, and ends it", async () => {
  expect(await extract("flipped", "1,5")).toMatchObject({ code: 0 });
  const directory = machine.path("store/flipped");
  const [key] = [...packHashesDirectory(directory).keys()].sort();
  const pack = readFileSync(join(directory, key!));
  pack[pack.length - 1]! ^= 1;
  writeFileSync(join(directory, key!), pack);
  const { code, stderr } = await exported(`file:${directory}`, "flipped-states");
  expect(code, stderr).toBe(9);
  expect(stderr).toContain(key);
});

test("a trainer that is not known is refused, with those that are", async () => {
  const ended = await machine.run(["export", address, machine.path("x"), "--as", "specforge"]);
  expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining("expected speculators") });
});
