import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { writeRows } from "./support/kills.ts";
import { FIXTURES, Machine } from "./support/program.ts";
import { VENV_PYTHON } from "./support/transformers.ts";

const SABOTAGED = fileURLToPath(new URL("./support/children/sabotaged.py", import.meta.url));

let machine: Machine;
beforeAll(() => {
  machine = new Machine();
});
afterAll(() => machine?.remove());

interface Report {
  ok: boolean;
  results: { kind: string; ok: boolean; tap: number | null; message: string }[];
  against?: string;
  agreement?: { tap: number; ok: boolean; medianError: number }[];
}

/** `forebay check` with an engine that makes the mistake `sabotage`. */
async function check(
  model: string,
  taps: string,
  sabotage: string,
  more: string[] = [],
): Promise<{ code: number | null; report: Report }> {
  const { code, stdout, stderr } = await machine.run([
    ...["check", "--model", join(FIXTURES, "models", model), "--taps", taps, "--engine", "transformers"],
    ...["--python", pythonThat(sabotage), "--threads", "1", "--json", ...more],
  ]);
  expect(stdout, stderr).toContain("{");
  return { code, report: JSON.parse(stdout.trim().split("\n").at(-1)!) as Report };
}

/** A Python that runs the sabotaged engine where it is told to run the engine. */
function pythonThat(sabotage: string): string {
  return pythonWith(sabotage, `exec '${VENV_PYTHON}' '${SABOTAGED}' '${sabotage}' "$@"`);
}

/** A Python with `engine`, in the shell's words, in place of the engine. */
function pythonWith(name: string, engine: string): string {
  const path = machine.path(`python-${name}`);
  const script = `#!/bin/sh\ncase "$1" in\n*run_engine.py) ${engine};;\nesac\nexec '${VENV_PYTHON}' "$@"\n`;
  writeFileSync(path, script, { mode: 0o755 });
  return path;
}

describe.each([
  [
    "random-qwen3",
    "1,3,5",
    ["none", "post-norm", "left-padding", "swapped-samples", "float16", "big-endian"],
  ],
  ["random-qwen3_5", "1,4,6", ["none", "off-by-one", "packed"]],
])("forebay check of %s", (model, taps, sabotages) => {
  test.each(sabotages)("with the mistake: %s", async (sabotage) => {
    const { code, report } = await check(model, taps, sabotage);
    if (sabotage === "none") {
      expect({ code, report }).toMatchObject({ code: 0, report: { ok: true } });
      expect(report.results.map(({ kind }) => kind)).toEqual(["injection", "pad-independence", "greedy"]);
      return;
    }
    expect({ code, ok: report.ok }).toEqual({ code: 9, ok: false });
    const injection = report.results.find(({ kind }) => kind === "injection")!;
    expect(injection.ok).toBe(false);
    expect(injection.message).toMatch(REASONS[sabotage]!);
    // The norm is that of the last tap; every other mistake is in the first one already.
    expect(injection.tap).toBe(Number(taps.split(",").at(sabotage === "post-norm" ? -1 : 0)));
  });
});

const REASONS: Record<string, RegExp> = {
  "off-by-one": /the output of block 2: taps off by 1/,
  "post-norm": /after the final norm/,
  "left-padding": /padded on the left/,
  packed: /packed one after another/,
  "swapped-samples": /samples are swapped/,
  float16: /float16 bytes called bfloat16/,
  "big-endian": /big-endian/,
};

describe("forebay check --against", () => {
  async function against(
    engines: [string, string],
    python: string,
  ): Promise<{ code: number | null; report: Report }> {
    const { code, stdout, stderr } = await machine.run([
      ...["check", "--model", join(FIXTURES, "models/random-qwen3"), "--taps", "1,3,5", "--threads", "1"],
      ...["--engine", engines[0], "--against", engines[1], "--python", python, "--json"],
    ]);
    expect(stdout, stderr).toContain("{");
    return { code, report: JSON.parse(stdout.trim().split("\n").at(-1)!) as Report };
  }

  test("two engines that are right agree at every tap", async () => {
    const { code, report } = await against(["onnx", "transformers"], VENV_PYTHON);
    expect({ code, report }).toMatchObject({ code: 0, report: { ok: true, against: "transformers" } });
    expect(report.agreement!.map(({ tap, ok }) => [tap, ok])).toEqual([1, 3, 5].map((tap) => [tap, true]));
  });

  test("an engine that makes a mistake is told by one that does not, for the taps in which it is", async () => {
    const { code, report } = await against(["onnx", "transformers"], pythonThat("post-norm"));
    expect({ code, ok: report.ok }).toEqual({ code: 9, ok: false });
    expect(report.results.every(({ ok }) => ok)).toBe(true);
    expect(report.agreement!.map(({ ok }) => ok)).toEqual([true, true, false]);
  });

  test("an engine against itself shows what is noise, and its model is never there twice", async () => {
    const log = machine.path("lives");
    const engine = `echo start >> '${log}'; '${VENV_PYTHON}' "$@"; code=$?; echo end >> '${log}'; exit $code`;
    const python = pythonWith("lives", engine);
    const { code, report } = await against(["transformers", "transformers"], python);
    expect(code).toBe(0);
    expect(report.agreement!.map(({ medianError }) => medianError)).toEqual([0, 0, 0]);
    expect(readFileSync(log, "utf8")).toBe("start\nend\nstart\nend\n");
  });
});

test("forebay check of several devices tries what a run would start on the first, and keeps its stderr", async () => {
  const seen = machine.path("devices");
  const python = pythonWith("devices", `echo "$CUDA_VISIBLE_DEVICES" >> '${seen}'; echo no luck >&2; exit 1`);
  const { code, stderr } = await machine.run([
    ...["check", "--model", join(FIXTURES, "models/random-qwen3"), "--taps", "1", "--python", python],
    ...["--engine", "transformers", "--devices", "0,1"],
  ]);
  expect({ code, seen: readFileSync(seen, "utf8") }).toEqual({ code: 7, seen: "0\n" });
  const [, log] = /its whole stderr is in (.*)/.exec(stderr)!;
  expect(readFileSync(log!, "utf8")).toBe("no luck\n");
});

test("forebay run ends with 9 where its gate is red, says why, and stores nothing", async () => {
  writeRows(machine, 20, mulberry32(2));
  const run = machine.path("run");
  const ended = await machine.run([
    ...["run", `file:${machine.path("store")}/red`, "--model", join(FIXTURES, "models/random-qwen3")],
    ...[
      "--dataset",
      machine.path("rows.jsonl"),
      "--taps",
      "1,3,5",
      "--engine",
      "transformers",
      "--threads",
      "1",
    ],
    ...["--python", pythonThat("post-norm"), "--run-dir", run, "--port", "0", "--disk-floor", "1MiB"],
    ...["--progress", "quiet"],
  ]);
  expect(ended.code, ended.stderr).toBe(9);
  expect(ended.stderr).toMatch(/the gate failed: injection: FAILED at block 5/);
  expect(ended.stderr).toContain("nothing was stored");
  const { stdout } = await machine.run(["status", "--run-dir", run, "--json"]);
  expect(JSON.parse(stdout)).toMatchObject({
    run: { state: "failed", exit_code: 9 },
    gate: { state: "failed", report: expect.stringContaining("after the final norm") },
    extraction: { batches: { committed: 0 } },
  });
  expect(existsSync(machine.path("store/red/run.json"))).toBe(false);
  expect(existsSync(machine.path("store/red/packs"))).toBe(false);
});
