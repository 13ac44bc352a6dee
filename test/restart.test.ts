import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { sickEngines } from "./support/faults.ts";
import { writeRows } from "./support/kills.ts";
import { FIXTURES, Machine } from "./support/program.ts";

/** What restart refuses, it refuses before it touches anything: the run that lives goes on as it was. */

const MODEL = join(FIXTURES, "models/random-qwen3");

let machine: Machine;
let address: string;
beforeEach(() => {
  machine = new Machine();
  writeRows(machine, 60, mulberry32(1));
  address = `file:${machine.path("store")}/run`;
});
afterEach(async () => {
  await machine.run(["stop", address, "--run-dir", machine.path("run")]);
  await machine.remove();
});

function start(...more: string[]) {
  return machine.run([
    ...["run", address, "--model", MODEL, "--dataset", machine.path("rows.jsonl"), "--taps", "1,3"],
    ...["--pack-bytes", "12KiB", "--spool", machine.path("spool"), "--disk-floor", "1MiB", "--port", "0"],
    ...["--run-dir", machine.path("run"), "--no-gate", "--threads", "1", ...more],
  ]);
}

function restart(...more: string[]) {
  return machine.run(["restart", address, "--run-dir", machine.path("run"), ...more]);
}

function record(name: string): Record<string, unknown> {
  return JSON.parse(readFileSync(machine.path("run", name), "utf8"));
}

describe("a run that lives", () => {
  test.each<[string, string[], string[], number]>([
    ["a flag of another engine", ["--engine", "onnx"], ["--attn", "sdpa"], 2],
    ["a flag of another engine than the one at work", [], ["--strict"], 2],
    ["flags that no one engine takes", ["--engine", "onnx"], ["--engine", "vllm", "--attn", "sdpa"], 2],
    ["vllm without a server", ["--engine", "onnx"], ["--engine", "vllm"], 2],
    ["a secret for the engines", [], ["--engine-env", "AWS_SECRET_ACCESS_KEY=a"], 2],
    ["a model that is not there", [], ["--model", "no-such-model"], 78],
  ])("is left alone by a restart with %s", async (_what, engine, flags, exit) => {
    const started = await start(...engine, "--detach", ...sickEngines({ delayMs: 500 }));
    expect(started.code, started.stderr).toBe(0);
    const [launch, before] = [record("launch.json"), record("supervisor.json")];
    const refused = await restart(...flags);
    expect(refused.code, refused.stderr).toBe(exit);
    expect(record("launch.json")).toEqual(launch);
    await expectUntouched(before);
  });

  test.each(["rows.jsonl", "recipe.yaml"])("is left alone where %s has gone since", async (name) => {
    writeFileSync(machine.path("recipe.yaml"), "a: 1\n");
    const attached = ["--attach", machine.path("recipe.yaml")];
    expect((await start("--detach", ...attached, ...sickEngines({ delayMs: 500 }))).code).toBe(0);
    const before = record("supervisor.json");
    rmSync(machine.path(name));
    const refused = await restart("--engines", "2");
    expect(refused.code, refused.stderr).toBeGreaterThan(1);
    expect(refused.stderr).toContain(name);
    await expectUntouched(before);
  });
});

/** The supervisor of that record still runs. */
async function expectUntouched(before: Record<string, unknown>): Promise<void> {
  expect(record("supervisor.json")).toEqual(before);
  const status = await machine.run(["status", address, "--run-dir", machine.path("run"), "--json"]);
  const { run } = JSON.parse(status.stdout);
  expect([run.state, run.pid]).toEqual(["running", (before.process as { pid: number }).pid]);
}
