import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { MODELS, RELATIVE_ERROR_MAX, readGolden, worstDistance } from "./support/golden.ts";
import { writeRows } from "./support/kills.ts";
import { DEMO, eventsOf, FIXTURES, isAlive, Machine } from "./support/program.ts";
import { readPacks } from "./support/read-packs.ts";
import { VENV_PYTHON } from "./support/transformers.ts";

let machine: Machine;
beforeEach(() => {
  machine = new Machine();
});
afterEach(() => machine.remove());

function run(address: string, model: string, dataset: string, taps: string, more: string[] = []): string[] {
  return [
    ...["run", address, "--model", model, "--dataset", dataset, "--taps", taps],
    ...["--engine", "transformers", "--python", VENV_PYTHON, "--threads", "1"],
    ...["--run-dir", machine.path("run"), "--spool", machine.path("spool"), "--port", "0"],
    ...["--progress", "quiet", ...more],
  ];
}

async function verify(address: string): Promise<unknown> {
  const { stdout } = await machine.run(["verify", address, "--deep", "--json"]);
  return JSON.parse(stdout.trim().split("\n").at(-1)!);
}

test("the demo's model over a saved dataset: gate, packs, a clean audit", async () => {
  const address = `file:${machine.path("store")}/demo`;
  const args = run(address, join(DEMO, "tiny-qwen3"), join(FIXTURES, "datasets/plain"), "1,4,7");
  expect(await machine.run(args)).toMatchObject({ code: 0 });
  const gate = eventsOf(machine.path("run")).find(({ event }) => event === "gate.checked");
  expect(JSON.stringify(gate)).toContain("injection: ok");
  expect(await verify(address)).toMatchObject({ ok: true, rows: { missing: 0, skipped: 0, corrupt: 0 } });
});

test("a run on the hybrid, killed in the middle and resumed: every row once, the golden ones with their golden states", async () => {
  const [name, others, taps] = ["random-qwen3_5", 54, [1, 4, 7]];
  const golden = readGolden(name);
  writeRows(machine, others, mulberry32(5));
  const dataset = machine.path("rows.jsonl");
  const goldenRows = golden.map(
    ({ ids }) => `${JSON.stringify({ input_ids: ids, loss_mask: ids.map(() => 1) })}\n`,
  );
  writeFileSync(dataset, goldenRows.join("") + readFileSync(dataset, "utf8"));
  const address = `file:${machine.path("store")}/hybrid`;
  const args = run(address, join(MODELS, name), dataset, taps.join(), ["--pack-bytes", "12KiB"]);
  const { child, ended } = machine.start(args);
  const packs = join(machine.path("store"), "hybrid/packs");
  await until(() => packsIn(packs).length > 0);
  child.kill("SIGKILL");
  expect(await ended).toMatchObject({ signal: "SIGKILL" });
  const engines = eventsOf(machine.path("run")).flatMap(({ pid, name: engine }) =>
    engine === "transformers" ? [pid as number] : [],
  );
  expect(engines.length).toBeGreaterThan(0);
  // The kernel ends the orphans.
  await until(() => !engines.some(isAlive));
  const before = packsIn(packs);
  const kept = before.map((pack) => readFileSync(join(packs, pack)));
  const resumed = await machine.run(args);
  expect(resumed, resumed.stderr).toMatchObject({ code: 0 });
  const rows = golden.length + others;
  expect(await verify(address)).toMatchObject({
    ok: true,
    rows: { planned: rows, committed: rows, missing: 0, duplicate: 0, corrupt: 0 },
  });
  // It was in the middle; and what was done then is as it was.
  expect(packsIn(packs).length).toBeGreaterThan(before.length);
  before.forEach((pack, i) => {
    expect(readFileSync(join(packs, pack)).equals(kept[i]!)).toBe(true);
  });
  const stored = readPacks(packs);
  golden.forEach((sequence, row) => {
    const { ids, states } = stored.get(row)!;
    expect(ids).toEqual(sequence.ids);
    expect(worstDistance(states, taps, sequence), `s${row}`).toBeLessThan(RELATIVE_ERROR_MAX);
  });
});

function packsIn(directory: string): string[] {
  mkdirSync(directory, { recursive: true });
  return readdirSync(directory, { recursive: true, encoding: "utf8" }).filter((name) =>
    name.endsWith(".safetensors"),
  );
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 20));
}
