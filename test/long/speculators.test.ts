import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { DEMO, FIXTURES, Machine } from "../support/program.ts";
import { ROOT, VENV_PYTHON } from "../support/transformers.ts";

const SPECULATORS = join(ROOT, ".cache/speculators");
const DATASET = join(FIXTURES, "datasets/plain");

let machine: Machine;
let address: string;
beforeAll(async () => {
  if (!existsSync(SPECULATORS)) throw new Error("needs speculators: npm run test:long installs it");
  machine = new Machine();
  address = `file:${machine.path("store")}/run`;
  expect(await extract(address, "1,4,7")).toMatchObject({ code: 0 });
});
afterAll(() => machine?.remove());

test("speculators 0.9.0 trains three DFlash steps straight from packs", () => {
  const { status, output } = python([
    ...["-m", "forebay.speculators", "train", "--speculator-type", "dflash"],
    ...["--verifier-name-or-path", join(DEMO, "tiny-qwen3"), "--data-path", DATASET],
    ...["--hidden-states-backend", "forebay", "--forebay-address", address, "--on-missing", "raise"],
    ...["--target-layer-ids", "2", "5", "--num-layers", "1", "--draft-vocab-size", "2048"],
    ...["--draft-attn-impl", "sdpa", "--loss-implementation", "eager", "--num-workers", "0"],
    ...["--mask-token-id", "0", "--total-seq-len", "512", "--block-size", "4", "--max-anchors", "16"],
    ...["--max-steps", "3", "--epochs", "1", "--log-freq", "1", "--save-path", machine.path("checkpoints")],
  ]);
  expect(status, output).toBe(0);
  const state = JSON.parse(readFileSync(machine.path("checkpoints/0/training_state.json"), "utf8"));
  expect(state).toMatchObject({ global_step: 3 });
  // It drops a sample whose ids are not its row's with no more than this.
  expect(output).not.toContain("match input ids");
});

test("its own reader loads what forebay export wrote: the same states and ids that the packs hold", async () => {
  const directory = machine.path("states");
  const exported = await machine.run(["export", address, directory, "--as", "speculators", "--json"]);
  expect(exported, exported.stderr).toMatchObject({ code: 0 });
  expect(JSON.parse(exported.stdout)).toMatchObject({ written: 40, kept: 0, skipped: 0, missing: 0 });
  const { status, output } = python([
    "-c",
    `
import sys, torch, forebay
from pathlib import Path
from hs_connectors import FileTransfer
run, transfer = forebay.open(sys.argv[1]), FileTransfer(Path(sys.argv[2]))
for row in run.rows.tolist():
    found, own = transfer.get_cached(row), run.read(row, check=True).tensors()
    assert found["hidden_states"].dtype == torch.bfloat16
    assert torch.equal(found["hidden_states"].view(torch.int16), own["hidden_states"].view(torch.int16))
    assert torch.equal(found["token_ids"], own["token_ids"])
print(len(run.rows), "rows")
`,
    address,
    directory,
  ]);
  expect(status, output).toBe(0);
  expect(output).toContain("40 rows");
  const again = await machine.run(["export", address, directory, "--as", "speculators", "--json"]);
  expect(JSON.parse(again.stdout)).toMatchObject({ written: 0, kept: 40 });
});

test("stock speculators takes every row of forebay tokenize with the states of forebay export", async () => {
  const [tokenized, states] = [machine.path("tokenized"), machine.path("tokenized-states")];
  const model = join(DEMO, "tiny-qwen3");
  const input = join(FIXTURES, "datasets/tokenised.jsonl");
  const steps = [
    ["tokenize", "--model", model, "--input", input, "--output", tokenized],
    [
      ...["run", `file:${machine.path("store")}/tokenized`, "--model", model, "--dataset", tokenized],
      ...["--for", "speculators-dflash", "--layers", "2", "--run-dir", machine.path("run-tokenized")],
      ...["--port", "0", "--progress", "quiet", "--no-gate"],
    ],
    ["export", `file:${machine.path("store")}/tokenized`, states, "--as", "speculators"],
  ];
  for (const step of steps) {
    const ended = await machine.run(step);
    expect(ended, ended.stderr).toMatchObject({ code: 0 });
  }
  // Its own reader, as its trainer makes it, and nothing of ours in the process.
  const { status, output } = python([
    "-c",
    `
import sys, torch
from pathlib import Path
from hs_connectors import FileTransfer
from speculators.train.data import ArrowDataset, SampleUnavailable
data = ArrowDataset(max_len=512, datapath=sys.argv[1], transfer=FileTransfer(Path(sys.argv[2])), on_missing="raise")
for index in range(len(data)):
    sample = data._get_raw_data(index)
    assert not isinstance(sample, SampleUnavailable), sample
    assert sample["hidden_states"].shape == (len(sample["input_ids"]), 2 * 192), sample["hidden_states"].shape
    assert sample["loss_mask"].dtype == torch.int64
print(len(data), "rows")
`,
    tokenized,
    states,
  ]);
  expect(status, output).toBe(0);
  expect(output).toContain("40 rows");
});

test("a run without its last block is refused with the reason, by export and by the backend", async () => {
  const other = `file:${machine.path("store")}/no-last`;
  expect(await extract(other, "1,4")).toMatchObject({ code: 0 });
  const exported = await machine.run(["export", other, machine.path("none"), "--as", "speculators"]);
  expect(exported.code).toBe(2);
  expect(exported.stderr).toContain("needs the last block's output");
  expect(existsSync(machine.path("none"))).toBe(false);
  const code = `
from forebay.speculators import PackTransfer
PackTransfer("${other}", None, None).get_cached(0)
`;
  expect(python(["-c", code]).output).toContain("speculators needs the last block's output");
});

function extract(where: string, taps: string) {
  return machine.run([
    ...["run", where, "--model", join(DEMO, "tiny-qwen3"), "--dataset", DATASET, "--taps", taps],
    ...["--run-dir", machine.path(`run-${taps}`), "--port", "0", "--progress", "quiet", "--no-gate"],
  ]);
}

function python(args: string[]): { status: number | null; output: string } {
  const { status, stdout, stderr } = spawnSync(VENV_PYTHON, args, {
    env: {
      PATH: process.env.PATH,
      HOME: machine.path("home"),
      HF_HUB_OFFLINE: "1",
      PYTHONPATH: `${join(ROOT, "python")}:${SPECULATORS}`,
    },
    encoding: "utf8",
    maxBuffer: 2 ** 26,
  });
  return { status, output: stdout + stderr };
}
