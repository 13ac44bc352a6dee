import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
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
  const path = machine.path(`python-${sabotage}`);
  const engine = `exec '${VENV_PYTHON}' '${SABOTAGED}' '${sabotage}' "$@"`;
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
