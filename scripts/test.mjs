#!/usr/bin/env node
// npm test [-- FILTER...]: set-up, build, vitest (unit, system; then quiet, alone), then pytest in python/.
// --long adds test/long. FILTERs are parts of test file paths, as vitest takes them; with one, pytest is left out
// unless it names something under python/. The very last line is "N passed, N failed", over all runners.
import { spawnSync } from "node:child_process";
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
const args = process.argv.slice(2);
const long = args.includes("--long");
const filters = args.filter((argument) => !argument.startsWith("--"));
const flags = args.filter((argument) => argument.startsWith("--") && argument !== "--long");
const pythonFilters = filters.filter((filter) => filter.startsWith("python/"));
const vitestFilters = filters.filter((filter) => !filter.startsWith("python/"));

setupPackages();
setupS3Servers();
const hasPython = setupPython();
if (long) {
  setupVersitygw();
  if (hasPython) setupSpeculators();
}
const { build } = await import("./build.mjs");

const results = [];
try {
  await build();
  if (vitestFilters.length > 0 || filters.length === 0) {
    results.push(runVitest(["unit", "system", ...(long ? ["long"] : [])]));
    // What holds a run's speed against itself wants the machine to itself.
    results.push(runVitest(["quiet"]));
  }
  if (hasPythonTests() && (pythonFilters.length > 0 || filters.length === 0)) results.push(runPytest());
} catch (error) {
  console.error(error.message);
  results.push({ passed: 0, failed: 1 });
}

const passed = sum(results.map((result) => result.passed));
const failed = sum(results.map((result) => result.failed));
process.exitCode = failed > 0 || passed === 0 ? 1 : 0;
console.log(`${passed} passed, ${failed} failed`);

/** A file that could not be loaded, or an error outside any test, counts as one failure. */
function runVitest(names) {
  const report = temporaryFile("vitest.json");
  const projects = names.flatMap((name) => ["--project", name]);
  const vitest = join(ROOT, "node_modules/vitest/vitest.mjs");
  const reporters = ["--reporter=default", "--reporter=json", `--outputFile.json=${report.path}`];
  const status = run(process.execPath, [
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

function runPytest() {
  if (!hasPython) return { passed: 0, failed: 1 };
  const report = temporaryFile("pytest.xml");
  const tests = pythonFilters.length > 0 ? pythonFilters : ["python"];
  const status = run(VENV_PYTHON, ["-m", "pytest", "-q", `--junitxml=${report.path}`, ...tests]);
  const xml = existsSync(report.path) ? readFileSync(report.path, "utf8") : "";
  report.remove();
  const count = (name) => Number(new RegExp(`<testsuite[^>]* ${name}="(\\d+)"`).exec(xml)?.[1] ?? 0);
  const failures = count("failures") + count("errors");
  const done = count("tests") - failures - count("skipped");
  return { passed: done, failed: failures === 0 && status !== 0 ? 1 : failures };
}

function hasPythonTests() {
  return existsSync(join(ROOT, "python/tests"));
}

function temporaryFile(name) {
  const directory = mkdtempSync(join(tmpdir(), "forebay-test-"));
  return { path: join(directory, name), remove: () => rmSync(directory, { recursive: true, force: true }) };
}

function run(command, argv) {
  // The AWS SDK announces in each worker that it will drop Node 20 one day.
  const env = { ...process.env, AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED: "true" };
  const { status, error } = spawnSync(command, argv, { cwd: ROOT, stdio: "inherit", env });
  if (error) throw error;
  return status;
}

function sum(numbers) {
  return numbers.reduce((total, n) => total + n, 0);
}
