import { spawnSync } from "node:child_process";
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { needRoot } from "./support/disks.ts";
import { CLI, FIXTURES, Machine } from "./support/program.ts";
import { VENV_PYTHON } from "./support/transformers.ts";

interface Finding {
  about: string;
  state: "ok" | "weak" | "broken";
  found: string;
  fix: string | null;
}

let machine: Machine;
beforeAll(() => {
  machine = new Machine();
});
afterAll(() => machine?.remove());

async function doctor(...flags: string[]): Promise<{ code: number | null; findings: Finding[] }> {
  const { code, stdout, stderr } = await machine.run(["doctor", "--json", ...flags]);
  expect(stdout, stderr).toContain("{");
  return { code, findings: JSON.parse(stdout).findings as Finding[] };
}

function of(findings: Finding[], begins: string): Finding {
  return findings.find(({ found }) => found.startsWith(begins))!;
}

test("an engine that is named is started: its versions and what it would compute on", async () => {
  const { code, findings } = await doctor("--engine", "transformers", "--python", VENV_PYTHON);
  expect(code, JSON.stringify(findings)).toBe(0);
  const started = of(findings, "transformers: starts");
  expect(started.state).toBe("ok");
  expect(started.found).toMatch(/torch \d.*transformers \d.* on .+/);
});

test("a GPU that is named and that torch does not see is broken: no run can start on it", async () => {
  const flags = ["doctor", "--json", "--engine", "transformers", "--python", VENV_PYTHON];
  const { code, stdout } = await machine.run(flags, { env: { CUDA_VISIBLE_DEVICES: "GPU-5e1c" } });
  expect(code, stdout).toBe(78);
  const found = of(JSON.parse(stdout).findings, "transformers: ");
  expect(found.state).toBe("broken");
  expect(found.found).toMatch(/GPU-5e1c.*torch \d.* does not see it/);
  expect(found.fix).toContain("nvidia-smi");
});

test("beside a GPU, fast kernels that are missing or cannot be imported are told, each with what helps", async () => {
  const bin = machine.path("gpu-python/bin");
  mkdirSync(join(bin, "causal_conv1d"), { recursive: true });
  writeFileSync(
    join(bin, "causal_conv1d/__init__.py"),
    "print('stray')\nraise ImportError('undefined symbol: _ZN3c10')\n",
  );
  const hello = {
    ...{ type: "hello", proto: 1, pid: 1, engine: "transformers" },
    // By its metadata it is there.
    versions: { torch: "2.13.0", "causal-conv1d": "1.6.0" },
    devices: [{ uuid: "GPU-5e1c", name: "NVIDIA H100", bytes: 1 }],
  };
  // A real Python, but for the engine: there is no GPU here.
  const script = `case "$1" in
*run_engine.py) echo '${JSON.stringify(hello)}' >&4; read line <&3; echo '{"type":"bye"}' >&4 ;;
*) PYTHONPATH='${bin}' exec '${VENV_PYTHON}' "$@" ;;
esac`;
  writeFileSync(join(bin, "python3"), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  const { code, findings } = await doctor("--engine", "transformers", "--python", join(bin, "python3"));
  expect(code, JSON.stringify(findings)).toBe(0);
  expect(of(findings, "transformers: starts")).toMatchObject({ state: "ok" });
  const slow = of(findings, "transformers: models with linear attention");
  expect(slow).toMatchObject({
    state: "weak",
    found: expect.stringMatching(/fla.*No module named 'fla'.*causal-conv1d: undefined symbol: _ZN3c10/),
    fix: expect.stringMatching(
      /pip install flash-linear-attention && pip install --force-reinstall .*causal-conv1d$/,
    ),
  });
});

test("what the named engine lacks is to be fixed; where none is named it is only told", async () => {
  const named = await doctor("--engine", "transformers", "--python", "no-such-python");
  expect(named.code).toBe(78);
  expect(of(named.findings, "transformers").state).toBe("broken");
  const unnamed = await doctor("--python", "no-such-python");
  expect(unnamed.code).toBe(0);
  expect(of(unnamed.findings, "transformers").state).toBe("weak");
  const vllm = await doctor("--engine", "vllm", "--python", machine.path("no-venv/bin/python"));
  expect(vllm.code).toBe(78);
  expect(of(vllm.findings, "vllm: there is no program").fix).toContain("pip install 'vllm>=0.22'");
});

test("a model that the onnx engine does not run is for another engine, and broken for onnx alone", async () => {
  const model = ["--model", join(FIXTURES, "models/random-qwen3_5")];
  const unnamed = await doctor(...model);
  expect(unnamed.code).toBe(0);
  expect(of(unnamed.findings, "Qwen3_5")).toMatchObject({
    state: "weak",
    fix: "--engine transformers runs it",
  });
  expect((await doctor(...model, "--engine", "onnx")).code).toBe(78);
  const given = await doctor(...model, "--engine", "transformers", "--python", VENV_PYTHON);
  expect(of(given.findings, "Qwen3_5")).toMatchObject({ state: "ok" });
});

test("a small /dev/shm, as containers have it, is told with what gives it more", () => {
  needRoot("a /dev/shm of its own");
  const command = `mount -t tmpfs -o size=64m tmpfs /dev/shm && exec '${process.execPath}' '${CLI}' doctor --json`;
  const { status, stdout, stderr } = spawnSync("unshare", ["--mount", "sh", "-c", command], {
    cwd: machine.path("work"),
    env: machine.env,
    encoding: "utf8",
  });
  expect(status, stderr).toBe(0);
  const shared = of(JSON.parse(stdout).findings, "vllm: /dev/shm");
  expect(shared).toMatchObject({ state: "weak", found: expect.stringContaining("64.0 MiB") });
  expect(shared.fix).toContain("--shm-size");
});
