import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, describe, expect, onTestFinished, test } from "vitest";
import { silentLog } from "../../src/base/log.ts";
import { Engine } from "../../src/engine/engine.ts";
import { describeEngine } from "../support/engine-conformance.ts";
import { compareRuns, extractGsm8k, tokenizeGsm8k } from "../support/gsm8k.ts";
import { DEMO, FIXTURES, Machine } from "../support/program.ts";
import { VENV_PYTHON } from "../support/transformers.ts";

/** A real vLLM 0.32 on the CPU; scripts/setup-vllm.mjs installs it. */
const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PROGRAM = join(ROOT, ".cache/vllm/bin/vllm");
/** Has golden states; but vLLM would load their file as weights, so it is given the same model without. */
const MODEL = join(FIXTURES, "models/tiny-qwen3");
const SERVED = join(DEMO, "tiny-qwen3");
const TAPS = [1, 4, 7];

const CPU_ENV = {
  PATH: process.env.PATH ?? "",
  HOME: process.env.HOME ?? "",
  HF_HUB_OFFLINE: "1",
  VLLM_CPU_KVCACHE_SPACE: "1",
  VLLM_CPU_OMP_THREADS_BIND: "nobind",
  OMP_NUM_THREADS: "2",
  PYTHONPATH: join(ROOT, "test/support/vllm-cpu"),
};
/** What a server on a CPU needs over Forebay's own arguments. */
const CPU_ARGUMENTS = [
  ...["--enforce-eager", "--max-model-len", "512", "--max-num-seqs", "8", "--max-num-batched-tokens", "512"],
  "--kv-transfer-config",
  JSON.stringify({
    kv_connector: "CpuHiddenStatesConnector",
    kv_connector_module_path: "cpu_connector",
    kv_role: "kv_producer",
    kv_connector_extra_config: { shared_storage_path: "{folder}" },
  }),
];

const folder = mkdtempSync(join(tmpdir(), "forebay-vllm-real-"));
let server: ChildProcess | null = null;
let url = "";
afterAll(() => {
  if (server?.pid && server.exitCode === null) process.kill(-server.pid, "SIGKILL");
  rmSync(folder, { recursive: true, force: true });
});

async function vllmCommand() {
  const { vllmEngineCommand } = (await import(join(ROOT, "dist/engine/vllm/command.js"))) as {
    vllmEngineCommand: typeof import("../../src/engine/vllm/command.ts").vllmEngineCommand;
  };
  return vllmEngineCommand({ target: { url }, env: { PATH: process.env.PATH ?? "" } });
}

async function startServer(): Promise<void> {
  const { status } = spawnSync(process.execPath, [join(ROOT, "scripts/setup-vllm.mjs")], {
    stdio: "inherit",
  });
  if (status !== 0) throw new Error("vLLM could not be installed: node scripts/setup-vllm.mjs");
  const { launchArguments } = (await import(join(ROOT, "dist/engine/vllm/launch.js"))) as {
    launchArguments: typeof import("../../src/engine/vllm/launch.ts").launchArguments;
  };
  const port = await freePort();
  url = `http://127.0.0.1:${port}`;
  const args = launchArguments({
    ...{ model: SERVED, taps: TAPS, blocks: 8, port, folder },
    // Golden states are in float32.
    ...{ dtype: "float32", forwardTokens: null, positions: null, extra: CPU_ARGUMENTS },
  });
  server = spawn(PROGRAM, args, { env: CPU_ENV, detached: true, stdio: ["ignore", "ignore", "inherit"] });
  while (
    !(await fetch(`${url}/health`).then(
      ({ ok }) => ok,
      () => false,
    ))
  ) {
    if (server.exitCode !== null) throw new Error(`vLLM exited with ${server.exitCode}`);
    await new Promise((resolve) => setTimeout(resolve, 500));
  }
}

describeEngine("vllm on a real server", async () => {
  await startServer();
  const config = JSON.parse(readFileSync(join(MODEL, "config.json"), "utf8"));
  return {
    command: await vllmCommand(),
    model: MODEL,
    facts: {
      arch: "Qwen3ForCausalLM",
      blocks: config.num_hidden_layers,
      hidden: config.hidden_size,
      vocab: config.vocab_size,
    },
    taps: TAPS,
    printingEnv: {
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(
        'console.log("stray, early"); setInterval(() => process.stdout.write("stray\\n"), 5).unref()',
      )}`,
    },
    // Float32 in other orders of adding, then rounded to bf16.
    batchTolerance: 2 ** -8,
    goldenTolerance: 2 ** -8,
  };
});

describe("a real vLLM server", () => {
  test("its own next token is what the stored last states choose", async () => {
    const engine = await Engine.start({
      command: await vllmCommand(),
      label: "vllm-0",
      log: silentLog,
      stderrFile: null,
    });
    onTestFinished(async () => void (await engine.kill()));
    const loaded = await engine.load({ model: MODEL, dtype: "auto", device: null, taps: TAPS, options: {} });
    expect(loaded).toMatchObject({ dtype: "float32", positions: 511, checks: ["greedy"] });
    expect(loaded.kernels[0]).toMatch(/^vllm 0\.32/);
  });

  test("a run with --serve on it ends verified, and no server is left", async () => {
    const machine = new Machine({ ...CPU_ENV, FOREBAY_PYTHON: join(ROOT, ".cache/vllm/bin/python") });
    onTestFinished(() => machine.remove());
    // The one that the other tests talk to is one of ours too.
    const before = servers();
    expect(before.length).toBeGreaterThan(0);
    const address = `file:${machine.path("store")}/run`;
    const ended = await machine.run([
      ...["run", address, "--model", SERVED, "--taps", "1,4,7", "--engine", "vllm", "--serve"],
      ...["--dataset", join(FIXTURES, "datasets/plain"), "--limit", "40", "--pack-bytes", "1MiB"],
      ...["--spool-bytes", "64MiB", "--disk-floor", "1MiB", "--port", "0", "--progress", "quiet"],
      ...["--engine-env", `PYTHONPATH=${CPU_ENV.PYTHONPATH}`, "--", ...CPU_ARGUMENTS],
    ]);
    expect(ended.code, ended.stderr).toBe(0);
    const verified = await machine.run(["verify", address]);
    expect(verified.code, verified.stdout).toBe(0);
    expect(servers()).toEqual(before);
  });
});

test("300 conversations through all three engines: each passes its gate, and they agree at every tap", async () => {
  const machine = new Machine(CPU_ENV);
  onTestFinished(() => machine.remove());
  const dataset = await tokenizeGsm8k(machine);
  const vllm = await extractGsm8k(machine, dataset, {
    engine: "vllm",
    flags: [
      ...["--python", join(ROOT, ".cache/vllm/bin/python"), "--dtype", "float32"],
      ...["--engine-env", `PYTHONPATH=${CPU_ENV.PYTHONPATH}`],
    ],
    serve: ["--serve", "--", ...CPU_ARGUMENTS],
  });
  const onnx = await extractGsm8k(machine, dataset, { engine: "onnx", flags: [] });
  const flags = ["--python", VENV_PYTHON];
  const transformers = await extractGsm8k(machine, dataset, { engine: "transformers", flags });
  const agreement = [
    ...compareRuns(onnx, transformers, "transformers against onnx"),
    ...compareRuns(onnx, vllm, "vllm against onnx"),
    ...compareRuns(transformers, vllm, "vllm against transformers"),
  ];
  expect(agreement.filter(({ ok }) => !ok)).toEqual([]);
});

/** The vLLM servers that run on this machine as Forebay starts them: pid and command line. */
function servers(): string[] {
  const { stdout } = spawnSync("ps", ["-eo", "pid,args", "--no-headers"], { encoding: "utf8" });
  return stdout.split("\n").filter((line) => line.includes("--served-model-name forebay"));
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const { port } = probe.address() as { port: number };
  await new Promise((resolve) => probe.close(resolve));
  return port;
}
