import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { writeRows } from "./support/kills.ts";
import { DEMO, eventsOf, FIXTURES, isAlive, Machine } from "./support/program.ts";
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

test("a run on the hybrid, killed in the middle and resumed: every row once, nothing computed twice but in flight", async () => {
  const rows = 60;
  writeRows(machine, rows, mulberry32(5));
  const address = `file:${machine.path("store")}/hybrid`;
  const model = join(FIXTURES, "models/random-qwen3_5");
  const args = run(address, model, machine.path("rows.jsonl"), "1,7", ["--pack-bytes", "12KiB"]);
  const { child, ended } = machine.start(args);
  const packs = join(machine.path("store"), "hybrid/packs");
  await until(() => packsIn(packs).length > 0);
  const before = packsIn(packs);
  const engines = eventsOf(machine.path("run")).flatMap(({ pid, name }) =>
    name === "transformers" ? [pid as number] : [],
  );
  child.kill("SIGKILL");
  expect(await ended).toMatchObject({ signal: "SIGKILL" });
  expect(engines.length).toBeGreaterThan(0);
  // The kernel ends the orphans.
  await until(() => !engines.some(isAlive));
  const kept = before.map((name) => readFileSync(join(packs, name)));
  const resumed = await machine.run(args);
  expect(resumed, resumed.stderr).toMatchObject({ code: 0 });
  expect(await verify(address)).toMatchObject({
    ok: true,
    rows: { planned: rows, committed: rows, missing: 0, duplicate: 0, corrupt: 0 },
  });
  expect(packsIn(packs).length).toBeGreaterThan(before.length);
  before.forEach((name, i) => {
    expect(readFileSync(join(packs, name)).equals(kept[i]!)).toBe(true);
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
