import { spawnSync } from "node:child_process";
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
