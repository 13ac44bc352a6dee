#!/usr/bin/env node
// npm test [-- FILTER...]: set-up, build, vitest (unit, system) with pytest in python/ beside it, then vitest (quiet)
// alone. --long adds test/long. FILTERs are parts of test file paths, as vitest takes them; with one, pytest is left out
// unless it names something under python/. The very last line is "N passed, N failed", over all runners.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import {
  setupPackages,
  setupPython,
  setupS3Servers,
  setupSpeculators,
  setupVersitygw,
  VENV_PYTHON,
} from "./setup.mjs";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const SETUP = join(ROOT, "scripts/setup.mjs");
const args = process.argv.slice(2);
const long = args.includes("--long");
const filters = args.filter((argument) => !argument.startsWith("--"));
const flags = args.filter((argument) => argument.startsWith("--") && argument !== "--long");
const pythonFilters = filters.filter((filter) => filter.startsWith("python/"));
const vitestFilters = filters.filter((filter) => !filter.startsWith("python/"));

setupPackages();
// Servers and Python packages come in while the program is built.
const others = once(spawn(process.execPath, [SETUP, "--python"], { stdio: "inherit" }), "exit");
const results = [];
try {
  const { build } = await import("./build.mjs");
  await build().finally(() => others);
  // Again where that failed, so that the reason stands here; else they only look.
  setupS3Servers();
  const hasPython = setupPython();
  if (long) {
    setupVersitygw();
    if (hasPython) setupSpeculators();
  }
  const pytest = pythonFilters.length > 0 || filters.length === 0 ? startPytest(hasPython) : null;
  const hasVitest = vitestFilters.length > 0 || filters.length === 0;
  if (hasVitest) results.push(await runVitest(["unit", "system", ...(long ? ["long"] : [])]));
  if (pytest) results.push(await pytest());
  // What holds a run's speed against itself wants the machine to itself.
  if (hasVitest) results.push(await runVitest(["quiet"]));
} catch (error) {
  console.error(error.message);
  results.push({ passed: 0, failed: 1 });
}

const passed = sum(results.map((result) => result.passed));
const failed = sum(results.map((result) => result.failed));
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
console.log(`${passed} passed, ${failed} failed`);

/** A file that could not be loaded, or an error outside any test, counts as one failure. */
async function runVitest(names) {
  const report = temporaryFile("vitest.json");
  const projects = names.flatMap((name) => ["--project", name]);
  const vitest = join(ROOT, "node_modules/vitest/vitest.mjs");
  const reporters = ["--reporter=default", "--reporter=json", `--outputFile.json=${report.path}`];
  const { status } = await run(process.execPath, [
    vitest,
    "run",
    ...projects,
    // A filter may leave one of the calls without a file; none in all of them is a failure, below.
    "--passWithNoTests",
    ...reporters,
    ...flags,
    ...vitestFilters,
  ]);
  if (!existsSync(report.path)) return { passed: 0, failed: 1 };
  const found = JSON.parse(readFileSync(report.path, "utf8"));
  report.remove();
  const unloaded = found.testResults.filter(
    (file) => file.status === "failed" && file.assertionResults.length === 0,
  );
  const failures = found.numFailedTests + unloaded.length;
  return { passed: found.numPassedTests, failed: failures === 0 && status !== 0 ? 1 : failures };
}

/** Begins pytest beside vitest; what it returns waits for it, and prints what it said. One thread: more would spin. */
function startPytest(hasPython) {
  if (!hasPython) return () => ({ passed: 0, failed: 1 });
  const report = temporaryFile("pytest.xml");
  const tests = pythonFilters.length > 0 ? pythonFilters : ["python"];
  const ended = run(VENV_PYTHON, ["-m", "pytest", "-q", `--junitxml=${report.path}`, ...tests], {
    stdio: "pipe",
    env: { OMP_NUM_THREADS: "1" },
  });
  return async () => {
    const { status, output } = await ended;
    process.stdout.write(output);
    const xml = existsSync(report.path) ? readFileSync(report.path, "utf8") : "";
    report.remove();
    const count = (name) => Number(new RegExp(`<testsuite[^>]* ${name}="(\\d+)"`).exec(xml)?.[1] ?? 0);
    const failures = count("failures") + count("errors");
    const done = count("tests") - failures - count("skipped");
    return { passed: done, failed: failures === 0 && status !== 0 ? 1 : failures };
  };
}

function temporaryFile(name) {
  const directory = mkdtempSync(join(tmpdir(), "forebay-test-"));
  return { path: join(directory, name), remove: () => rmSync(directory, { recursive: true, force: true }) };
}

/** `stdio` "pipe": its stdout and stderr become `output`. `env` is added to ours. */
async function run(command, argv, { stdio = "inherit", env = {} } = {}) {
  const child = spawn(command, argv, {
    cwd: ROOT,
    stdio: ["inherit", stdio, stdio],
    // The AWS SDK announces in each worker that it will drop Node 20 one day.
    env: { ...process.env, AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED: "true", ...env },
  });
  const output = [];
  for (const stream of [child.stdout, child.stderr]) stream?.on("data", (piece) => output.push(piece));
  const [status] = await once(child, "close");
  return { status, output: Buffer.concat(output) };
}

function sum(numbers) {
  return numbers.reduce((total, n) => total + n, 0);
}
