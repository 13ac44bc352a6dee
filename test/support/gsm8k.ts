import { join } from "node:path";
import { expect } from "vitest";
import { compareTap, type TapAgreement } from "../../src/run/against.ts";
import { DEMO, eventsOf, FIXTURES, type Machine } from "./program.ts";
import { readPacks, type StoredSample } from "./read-packs.ts";

/** The same 300 conversations through several engines, compared tap by tap. */

const ROWS = 300;
const TAPS = [1, 4, 7];
const HIDDEN = 192;
/** The weights alone, as vLLM wants them. */
const MODEL = join(DEMO, "tiny-qwen3");

/** Makes the dataset of the first 300 conversations of GSM8K's test split; its path. */
export async function tokenizeGsm8k(machine: Machine): Promise<string> {
  const output = machine.path("gsm8k");
  const input = join(FIXTURES, "gsm8k-test.jsonl");
  const args = ["--model", MODEL, "--input", input, "--limit", String(ROWS), "--output", output];
  const ended = await machine.run(["tokenize", ...args]);
  expect(ended.code, ended.stderr).toBe(0);
  return output;
}

/** Runs `engine` over the dataset, its gate first, and checks it by `forebay check` too. What its packs hold, by row. */
export async function extractGsm8k(
  machine: Machine,
  dataset: string,
  { engine, flags, serve = [] }: { engine: string; flags: string[]; serve?: string[] },
): Promise<Map<number, StoredSample>> {
  const common = ["--model", MODEL, "--taps", TAPS.join(), "--engine", engine, ...flags];
  const ended = await machine.run([
    ...["run", `file:${machine.path("store")}/${engine}`, "--dataset", dataset, ...common],
    ...["--run-dir", machine.path(`run-${engine}`), "--port", "0", "--progress", "quiet"],
    ...["--disk-floor", "1MiB", ...serve],
  ]);
  expect(ended.code, ended.stderr).toBe(0);
  const gate = eventsOf(machine.path(`run-${engine}`)).find(({ event }) => event === "gate.checked");
  expect(gate, JSON.stringify(gate)).toMatchObject({ state: "passed" });
  const checked = await machine.run(["check", ...common, ...serve]);
  expect(checked.code, checked.stdout + checked.stderr).toBe(0);
  console.log(`${engine}: forebay check\n${checked.stdout}`);
  const packs = readPacks(machine.path("store", engine, "packs"));
  expect(packs.size).toBe(ROWS);
  return packs;
}

/** By the tolerance of `forebay check --against`, over all tokens of all rows. Prints what it finds. */
export function compareRuns(
  a: ReadonlyMap<number, StoredSample>,
  b: ReadonlyMap<number, StoredSample>,
  names: string,
): TapAgreement[] {
  const rows = [...a.keys()].sort((x, y) => x - y);
  for (const row of rows) expect(b.get(row)?.ids, `ids of row ${row}`).toEqual(a.get(row)!.ids);
  const [x, y] = [a, b].map((packs) => concatenated(rows.map((row) => packs.get(row)!.states)));
  const shape = { taps: TAPS.length, hidden: HIDDEN };
  const found = TAPS.map((tap, slot) => compareTap(x!, y!, { tap, slot, shape }));
  for (const { tap, meanError, medianError, worstError, medianCosine } of found) {
    const errors = [meanError, medianError, worstError].map((error) => error.toExponential(2));
    console.log(
      `${names}, block ${tap}: mean ${errors[0]}, median ${errors[1]}, largest ${errors[2]}, cosine ${medianCosine.toFixed(6)}`,
    );
  }
  return found;
}

function concatenated(parts: readonly Uint16Array[]): Uint16Array {
  const whole = new Uint16Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
