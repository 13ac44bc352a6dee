#!/usr/bin/env node
// npm run test:mutants [-- NAME...]: shows that the tests bite. From a build of its own one safety step at a time is
// taken away, and a test that is meant to notice must fail; with all steps in place it must pass. Exits 1 where a
// mutant survives, where a test fails without any, or where a step is no longer where this file says it is.
import { spawnSync } from "node:child_process";
import { copyFileSync, cpSync, existsSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import ts from "typescript";
import { ROOT } from "./build.mjs";
import { setupPackages, setupS3Servers } from "./setup.mjs";

/** `find` stands once in `file` and becomes `replace`; `test` is a file and a part of a title in it. */
const MUTANTS = [
  {
    name: "no-verify",
    what: "a pack is believed to be stored because the PUT said so",
    file: "spool/upload-pack.ts",
    find: 'const stored = await timed("verify", () => verifyObject(store, job.traits, expected, signal));',
    replace: 'const stored = await Promise.resolve({ kind: "same" });',
    test: ["test/faults-store.test.ts", "says it has a pack that it does not have"],
  },
  {
    name: "no-start-check",
    what: "what was in ready/ at the start is not checked",
    file: "spool/recover.ts",
    find: "const crc32c = await spool.checkReady(found, { identity, layout });",
    replace: "const crc32c = null;",
    test: ["test/faults-disk.test.ts", "a flipped bit"],
  },
  {
    name: "no-directory-fsync",
    what: "a name in a directory store is not made durable",
    file: "base/publish.ts",
    find: "  fsyncDirectory(dirname(path));\n  return true;",
    replace: "  return true;",
    test: ["test/durability.test.ts", "a name is durable"],
  },
  {
    name: "no-parent-fsync",
    what: "a new folder of a directory store is not made durable",
    file: "store/directory.ts",
    find: "    fsyncDirectory(parent);\n",
    replace: "",
    test: ["test/durability.test.ts", "a name is durable"],
  },
  {
    name: "no-file-fsync",
    what: "an object's bytes are not made durable before its name",
    file: "base/publish.ts",
    find: "writeAllSync(fd, chunk, null);\n    fsyncSync(fd);",
    replace: "writeAllSync(fd, chunk, null);",
    test: ["test/durability.test.ts", "a name is durable"],
  },
  {
    name: "no-create-only",
    what: "packs are put without If-None-Match",
    file: "spool/upload-pack.ts",
    find: 'createOnly: job.traits.publish === "create-only",',
    replace: "createOnly: false,",
    test: ["test/faults-store.test.ts", "never overwritten"],
  },
  {
    name: "no-upload-check",
    what: "samples' CRCs are not checked when the file is read",
    file: "pack/check.ts",
    find: "if (this.#sampleCrc !== sample.crc32c) {",
    replace: "if (false) {",
    test: ["test/faults-engine.test.ts", "changed on the disk after their CRC"],
  },
  {
    name: "no-budget",
    what: "room is granted beyond --spool-bytes",
    file: "spool/budget.ts",
    find: "return this.#usedBytes + bytes <= this.#options.budgetBytes;",
    replace: "return true;",
    test: ["test/faults-store.test.ts", "never holds more than --spool-bytes"],
  },
  {
    name: "no-identity",
    what: "a run of another model goes on with this one's packs",
    file: "run/prepare.ts",
    find: "if (standing) assertSameIdentity(identity, standing, store.address);",
    replace: "",
    test: ["test/faults-control.test.ts", "from the bucket alone"],
  },
  {
    name: "no-lease",
    what: "a second run starts on a part that is taken",
    file: "run/open-run.ts",
    find: "await claimPart({",
    replace: "void ({",
    test: ["test/bad-input.test.ts", "known only by its heartbeat"],
  },
  {
    name: "no-watchdog",
    what: "an engine may be silent for ever",
    file: "engine/watchdog.ts",
    find: "return Math.max(forwardFloorMs, forwardFactor * median(this.#msPerToken) * tokens);",
    replace: "return 2 ** 30;",
    test: ["test/faults-engine.test.ts", "found by the watchdog"],
  },
];

/** Below the repository, so that packages are found by walking up. */
const WORK = join(ROOT, `.cache/mutants-${process.pid}`);
const options = ts.parseJsonConfigFileContent(
  JSON.parse(readFileSync(join(ROOT, "tsconfig.json"), "utf8")),
  ts.sys,
  ROOT,
).options;

const wanted = process.argv.slice(2);
const chosen = MUTANTS.filter(({ name }) => wanted.length === 0 || wanted.includes(name));
if (chosen.length === 0)
  throw new Error(`no such mutant; there are ${MUTANTS.map(({ name }) => name).join(", ")}`);

setupPackages();
setupS3Servers();
process.once("exit", () => rmSync(WORK, { recursive: true, force: true }));
const whole = buildWhole();
const verdicts = chosen.map((mutant) => {
  const verdict = judge(mutant);
  console.log(
    `${verdict.ok ? "caught  " : "SURVIVED"} ${mutant.name}: ${mutant.what}\n         ${verdict.text}`,
  );
  return verdict;
});
const survived = verdicts.filter(({ ok }) => !ok).length;
console.log(`${verdicts.length - survived} of ${verdicts.length} mutants caught`);
process.exitCode = survived > 0 ? 1 : 0;

/** A build of a copy of src/, which may change meanwhile, beside what the program reads of its package. */
function buildWhole() {
  const directory = join(WORK, "whole");
  cpSync(join(ROOT, "src"), join(directory, "src"), { recursive: true });
  copyFileSync(join(ROOT, "tsconfig.json"), join(directory, "tsconfig.json"));
  furnish(directory);
  const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
  const flags = ["-p", directory, "--sourceMap", "false"];
  const { status } = spawnSync(process.execPath, [tsc, ...flags], { cwd: ROOT, stdio: "inherit" });
  if (status !== 0) throw new Error("src/ does not compile");
  return join(directory, "dist");
}

/** A build with that step taken away; null where the step is not there. */
function withMutant({ name, file, find, replace }) {
  const source = readFileSync(join(dirname(whole), "src", file), "utf8");
  if (source.split(find).length !== 2) return null;
  const dist = join(WORK, name, "dist");
  cpSync(whole, dist, { recursive: true });
  furnish(dirname(dist));
  const built = join(dist, file.replace(/\.ts$/, ".js"));
  // A file that is compiled otherwise than the whole was would fail for that alone.
  if (compile(source) !== readFileSync(built, "utf8"))
    throw new Error(`src/${file} compiles to something else`);
  writeFileSync(built, compile(source.replace(find, () => replace)));
  return dist;
}

function compile(source) {
  const compilerOptions = { ...options, module: ts.ModuleKind.ESNext, sourceMap: false };
  return ts.transpileModule(source, { compilerOptions }).outputText;
}

function furnish(directory) {
  copyFileSync(join(ROOT, "package.json"), join(directory, "package.json"));
  for (const name of ["python", "demo"]) {
    if (existsSync(join(ROOT, name))) symlinkSync(join(ROOT, name), join(directory, name));
  }
}

/** The test must pass on the whole program, or its failing proves nothing, and fail on the mutant. */
function judge(mutant) {
  const { test } = mutant;
  const dist = withMutant(mutant);
  if (!dist)
    return { ok: false, text: `src/${mutant.file} has no such step any more: move the mutant along with it` };
  const sound = run(test, whole);
  if (sound.passed === 0 || sound.failed > 0)
    return { ok: false, text: `fails without it too: ${sound.why}` };
  const maimed = run(test, dist);
  return maimed.failed > 0
    ? { ok: true, text: `by ${test[0]}, "${maimed.title}"` }
    : {
        ok: false,
        text: maimed.passed > 0 ? `${test[0]} passes without that step` : `no test ran: ${maimed.why}`,
      };
}

function run([file, title], dist) {
  const report = join(WORK, "report.json");
  rmSync(report, { force: true });
  const vitest = join(ROOT, "node_modules/vitest/vitest.mjs");
  spawnSync(
    process.execPath,
    [
      vitest,
      "run",
      "--project",
      "system",
      file,
      "-t",
      title,
      "--reporter=json",
      `--outputFile.json=${report}`,
    ],
    { cwd: ROOT, env: { ...process.env, FOREBAY_TEST_DIST: dist }, stdio: ["ignore", "ignore", "ignore"] },
  );
  if (!existsSync(report)) return { passed: 0, failed: 0, why: "vitest wrote no report" };
  const {
    numPassedTests: passed,
    numFailedTests: failed,
    testResults,
  } = JSON.parse(readFileSync(report, "utf8"));
  const first = testResults
    .flatMap((file) => file.assertionResults)
    .find(({ status }) => status === "failed");
  const why = first?.failureMessages?.[0]?.split("\n")[0] ?? testResults[0]?.message ?? "no such test";
  return { passed, failed, title: first?.title, why };
}
