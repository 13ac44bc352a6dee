import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { MODELS, RELATIVE_ERROR_MAX, readGolden, worstDistance } from "./support/golden.ts";
import { type Ended, Machine } from "./support/program.ts";
import { readPacks } from "./support/read-packs.ts";

/** A model of 8 blocks and its golden states, those before the final norm among them. */
const MODEL = join(MODELS, "tiny-qwen3");
/** DFlash's for 3 draft layers, and the last block. */
const TAPS = [1, 3, 5, 7];
const FOR = ["--for", "speculators-dflash", "--layers", "3"];

let machine: Machine;
let dataset: string;
beforeEach(() => {
  machine = new Machine();
  dataset = machine.path("rows.jsonl");
  const rows = readGolden("tiny-qwen3").map(({ ids }) => `${JSON.stringify({ input_ids: ids })}\n`);
  writeFileSync(dataset, rows.join(""));
});
afterEach(() => machine.remove());

function json({ code, stdout, stderr }: Ended): Record<string, unknown> {
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout);
}

test("taps --for chooses the blocks, and says how the trainer is told of them", async () => {
  const ended = await machine.run(["taps", "--model", MODEL, ...FOR]);
  expect(ended.code, ended.stderr).toBe(0);
  expect(ended.stdout).toContain("--taps 1,3,5,7");
  expect(ended.stdout).toMatch(/speculators-dflash +yes: --target-layer-ids 2 4 6$/m);
  expect(json(await machine.run(["taps", "--model", MODEL, ...FOR, "--json"]))).toMatchObject({
    taps: TAPS,
    vllm: [2, 4, 6, 8],
    hf: [2, 4, 6, null],
  });
});

test("plan says which trainers a run can feed, and why it cannot feed the others", async () => {
  const plan = (taps: string[], more: string[] = []) =>
    machine.run(["plan", "--model", MODEL, "--dataset", dataset, ...taps, ...more]);
  const all = json(await plan(FOR, ["--json"])).trainers as { trainer: string; ok: boolean }[];
  expect(all.map(({ ok }) => ok)).toEqual([true, true, true, true]);
  const some = await plan(["--for", "zlab", "--layers", "3"]);
  expect(some.stdout).toMatch(
    /^trainers {2}speculators-dflash {2}no: it needs the last block's output, which is not/m,
  );
  expect(some.stdout).toMatch(/^ +zlab +yes: "dflash_config": \{"target_layer_ids": \[1, 3, 5\]\}$/m);
});

test.each([
  ["forebay", "1,3,7"],
  ["zlab", "1,3,7"],
  ["vllm", "2,4,8"],
  ["hf", "2,4"],
])("--taps-as %s: %s are the same blocks to taps, plan and run", async (numbering, ids) => {
  const blocks = numbering === "hf" ? [1, 3] : [1, 3, 7];
  const named = ["--taps", ids, "--taps-as", numbering];
  const own = ["--taps", blocks.join(",")];
  expect(json(await machine.run(["taps", "--model", MODEL, ...named, "--json"]))).toMatchObject({
    taps: blocks,
    vllm: blocks.map((block) => block + 1),
  });
  const data = ["--model", MODEL, "--dataset", dataset];
  const plan = async (taps: string[]) => json(await machine.run(["plan", ...data, ...taps, "--json"]));
  expect(await plan(named)).toEqual(await plan(own));
  const address = `file:${machine.path("store")}/run`;
  const more = ["--port", "0", "--progress", "quiet", "--disk-floor", "1MiB", "--no-gate"];
  const ended = await machine.run(["run", address, ...data, ...named, ...more]);
  expect(ended.code, ended.stderr).toBe(0);
  const record = JSON.parse(readFileSync(machine.path("store/run/run.json"), "utf8"));
  expect(record.identity.taps).toEqual(blocks);
  expect(record.numbering.vllm).toEqual(blocks.map((block) => block + 1));
});

test.each([
  ["hf", "0,2", "the embeddings"],
  ["hf", "2,8", "after the final norm"],
  ["vllm", "2,9", "out of range"],
])("--taps-as %s: %s names no block's output, and why is told", async (numbering, ids, why) => {
  const ended = await machine.run(["taps", "--model", MODEL, "--taps", ids, "--taps-as", numbering]);
  expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining(why) });
});

test("run --for stores the golden states of the chosen blocks, and records them like any taps", async () => {
  const address = `file:${machine.path("store")}/run`;
  const run = (taps: string[]) =>
    machine.run([
      ...["run", address, "--model", MODEL, "--dataset", dataset, ...taps],
      ...["--run-dir", machine.path("run"), "--port", "0", "--progress", "quiet", "--disk-floor", "1MiB"],
    ]);
  const ended = await run(FOR);
  expect(ended.code, ended.stderr).toBe(0);
  const packs = readPacks(machine.path("store", "run", "packs"));
  for (const [row, golden] of readGolden("tiny-qwen3").entries()) {
    expect(worstDistance(packs.get(row)!.states, TAPS, golden), `row ${row}`).toBeLessThan(
      RELATIVE_ERROR_MAX,
    );
  }
  // The same blocks by their numbers are the same run, others are another.
  const same = await run(["--taps", "1,3,5,7"]);
  expect(same.code, same.stderr).toBe(0);
  const other = await run(["--for", "zlab", "--layers", "3"]);
  expect(other).toMatchObject({ code: 4, stderr: expect.stringContaining("stored 1,3,5,7, asked 1,3,5") });
});

test("check --for proves the engine at the blocks that it chooses", async () => {
  const checked = await machine.run(["check", "--model", MODEL, ...FOR]);
  expect(checked, checked.stderr).toMatchObject({ code: 0 });
});

test("--for beside --taps is refused, unless one of them comes from a stronger place", async () => {
  const both = await machine.run(["taps", "--model", MODEL, ...FOR, "--taps", "1,2"]);
  expect(both).toMatchObject({
    code: 2,
    stderr: expect.stringContaining("expected one of them, found both"),
  });
  const env = { FOREBAY_FOR: "zlab", FOREBAY_LAYERS: "3" };
  const flag = await machine.run(["taps", "--model", MODEL, "--taps", "1,2", "--json"], { env });
  expect(json(flag)).toMatchObject({ taps: [1, 2] });
  writeFileSync(machine.path("work/run.yaml"), "taps: 1,2\n");
  expect(json(await machine.run(["taps", "--model", MODEL, "--json"], { env }))).toMatchObject({
    taps: [1, 3, 5],
  });
});

test("a trainer that nobody knows is refused with those that there are", async () => {
  const ended = await machine.run(["taps", "--model", MODEL, "--for", "eagle3"]);
  expect(ended).toMatchObject({ code: 2, stderr: expect.stringContaining("speculators-eagle3") });
});
