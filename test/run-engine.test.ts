import { readFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { StatusDocument } from "../src/run/status.ts";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { writeRows } from "./support/kills.ts";
import { type Ended, eventsOf, FIXTURES, Machine } from "./support/program.ts";
import { VENV_PYTHON } from "./support/transformers.ts";

/** Which engine goes on with a run: the one that it was begun with, unless a person says another. */

const MODEL = join(FIXTURES, "models/random-qwen3");
const PYTHON = ["--python", VENV_PYTHON, "--threads", "1"];

let machine: Machine;
let address: string;
beforeEach(() => {
  machine = new Machine();
  writeRows(machine, 60, mulberry32(1));
  address = `file:${machine.path("store")}/run`;
});
afterEach(() => machine.remove());

/** Each part with a run directory of its own, as on a machine of its own. */
function part(verb: "run" | "resume", index: number, more: string[]): Promise<Ended> {
  const dataset = ["--dataset", machine.path("rows.jsonl"), "--taps", "1,3", "--pack-bytes", "48KiB"];
  return machine.run([
    ...[verb, address, "--model", MODEL, ...(verb === "run" ? dataset : []), "--part", `${index}/4`],
    ...["--run-dir", machine.path(`part-${index}`), "--port", "0", "--disk-floor", "1MiB"],
    ...["--progress", "plain", "--json", ...more],
  ]);
}

function loaded(index: number): unknown {
  return eventsOf(machine.path(`part-${index}`)).find(({ event }) => event === "engine.loaded");
}

test("a run goes on with the engine and the dtype that it was begun with; another one has to be named, and is told", async () => {
  const begun = await part("run", 1, [
    ...PYTHON,
    "--engine",
    "transformers",
    "--dtype",
    "bfloat16",
    "--strict",
  ]);
  expect(begun.code, begun.stderr).toBe(0);
  const record = JSON.parse(readFileSync(machine.path("store/run/run.json"), "utf8"));
  expect(record.facts).toMatchObject({ engine: "transformers", dtype: "bfloat16", attn: null, strict: true });

  const resumed = await part("resume", 2, PYTHON);
  expect(resumed.code, resumed.stderr).toBe(0);
  expect(loaded(2)).toMatchObject({ engine: "transformers-0", dtype: "bfloat16" });
  const again = await part("run", 3, PYTHON);
  expect(again.code, again.stderr).toBe(0);
  expect(loaded(3)).toMatchObject({ engine: "transformers-0", dtype: "bfloat16" });
  for (const { stderr } of [resumed, again]) expect(stderr).not.toContain("engine_changed");

  const changed = await part("resume", 4, ["--engine", "onnx"]);
  expect(changed.code, changed.stderr).toBe(0);
  expect(loaded(4)).toMatchObject({ engine: "onnx-0" });
  const told =
    "begun with engine transformers, dtype bfloat16, strict true; goes on with engine onnx, dtype auto, strict false";
  expect(changed.stderr).toContain(told);
  // It stays with the run: in the last heartbeat of who did it, on any machine.
  const status = StatusDocument.parse(
    JSON.parse(readFileSync(machine.path("store/run/status/4-of-4.json"), "utf8")),
  );
  expect(status.alerts).toContainEqual(
    expect.objectContaining({ level: "warn", text: expect.stringContaining(told) }),
  );
});

test("the line that status gives after a kill goes on, with all that the engine needs", async () => {
  const needed = ["--engine", "transformers", ...PYTHON, "--forward-tokens", "64", "--attn", "eager"];
  const { child, ended } = machine.start([
    ...["run", address, "--model", MODEL, "--dataset", machine.path("rows.jsonl"), "--taps", "1,3"],
    ...["--pack-bytes", "12KiB", "--spool", machine.path("spool"), "--disk-floor", "1MiB", "--port", "0"],
    ...["--progress", "json", ...needed],
  ]);
  await new Promise<void>((resolve) => {
    child.stderr!.on("data", (chunk: Buffer) => chunk.includes("batch.committed") && resolve());
  });
  child.kill("SIGKILL");
  await ended;
  const { run } = JSON.parse((await machine.run(["status", address, "--json"])).stdout);
  expect(run.state).toBe("lost");
  const [program, ...words] = run.action.split(" ") as string[];
  expect(program).toBe("forebay");
  expect(run.action).toContain(needed.slice(0, 6).join(" "));
  const resumed = await machine.run([...words, "--port", "0"]);
  expect(resumed.code, resumed.stderr).toBe(0);
  expect(resumed.stderr).not.toContain("engine_changed");
});

test("the line that status gives of a run whose engine only the store names goes on, whatever the environment says for others", async () => {
  const env = { FOREBAY_PYTHON: VENV_PYTHON, FOREBAY_ATTN: "eager" };
  const ran = await machine.run(
    [
      ...["run", address, "--model", MODEL, "--dataset", machine.path("rows.jsonl"), "--taps", "1,3"],
      ...["--disk-floor", "1MiB", "--port", "0", "--threads", "1", "--no-gate"],
    ],
    { env },
  );
  expect(ran.code, ran.stderr).toBe(0);
  const { run } = JSON.parse((await machine.run(["status", address, "--json"])).stdout);
  expect(run.resume_command).toMatch(/ --threads 1 /);
  expect(run.resume_command).not.toMatch(/--python|--attn/);
  const resumed = await machine.run([...run.resume_command.split(" ").slice(1), "--port", "0"]);
  expect(resumed.code, resumed.stderr).toBe(0);
});
