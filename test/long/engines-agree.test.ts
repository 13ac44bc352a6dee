import { afterAll, beforeAll, expect, test } from "vitest";
import { compareRuns, extractGsm8k, tokenizeGsm8k } from "../support/gsm8k.ts";
import { Machine } from "../support/program.ts";
import { VENV_PYTHON } from "../support/transformers.ts";

/** More than one fight with whatever else the machine does, and cost more time than they save. */
const THREADS = ["--threads", "1"];

let machine: Machine;
beforeAll(() => {
  machine = new Machine();
});
afterAll(() => machine?.remove());

// The third engine, a real vLLM, joins in vllm-real.test.ts.
test("300 conversations through the onnx and the transformers engine: each passes its gate, and they agree at every tap", {
  timeout: 600_000,
}, async () => {
  const dataset = await tokenizeGsm8k(machine);
  const onnx = await extractGsm8k(machine, dataset, { engine: "onnx", flags: THREADS });
  const flags = ["--python", VENV_PYTHON, ...THREADS];
  const transformers = await extractGsm8k(machine, dataset, { engine: "transformers", flags });
  const agreement = compareRuns(onnx, transformers, "transformers against onnx");
  expect(agreement.filter(({ ok }) => !ok)).toEqual([]);
});
