#!/usr/bin/env node
// Builds dist/ (tsc; it mirrors src/), dist/bundle (bundle.mjs) and, where web/ has a page, dist/web (vite). Does
// nothing when no input changed.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));

/** Brings dist/ up to date. Throws where the compiler or vite found an error. */
export async function build() {
  await buildProgram();
  await buildPage();
}

async function buildProgram() {
  const inputs = ["src", "tsconfig.json", "package-lock.json", "scripts/bundle.mjs"];
  await onceFor("dist/.program", inputs, async () => {
    dropOrphans();
    const tsc = join(ROOT, "node_modules/typescript/bin/tsc");
    run(process.execPath, [
      tsc,
      "-p",
      "tsconfig.json",
      "--incremental",
      "--tsBuildInfoFile",
      "dist/.tsbuildinfo",
    ]);
    const { bundle } = await import("./bundle.mjs");
    await bundle(ROOT);
    if (existsSync(join(ROOT, "dist/cli.js"))) chmodSync(join(ROOT, "dist/cli.js"), 0o755);
  });
}

async function buildPage() {
  if (!existsSync(join(ROOT, "web/vite.config.ts"))) return;
  await onceFor("dist/.page", ["web", "package-lock.json"], () => {
    const vite = join(ROOT, "node_modules/vite/bin/vite.js");
    run(process.execPath, [
      vite,
      "build",
      "web",
      "--logLevel",
      "warn",
      "--outDir",
      join(ROOT, "dist/web"),
      "--emptyOutDir",
    ]);
  });
}

/** Runs `step` unless `stamp` says that it ran for exactly these inputs. */
async function onceFor(stamp, inputs, step) {
  const before = fingerprint(inputs);
  const path = join(ROOT, stamp);
  if (existsSync(path) && readFileSync(path, "utf8") === before) return;
  rmSync(path, { force: true });
  await step();
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, before);
}

/** A hash of the names, sizes and times of all files under `inputs`. */
function fingerprint(inputs) {
  const hash = createHash("sha256").update(process.version);
  for (const input of inputs) {
    for (const file of filesUnder(join(ROOT, input))) {
      const { size, mtimeMs } = statSync(file);
      hash.update(`${file}\0${size}\0${mtimeMs}\n`);
    }
  }
  return hash.digest("hex");
}

/** tsc never removes what it once wrote: a module deleted from src/ must not live on in dist/. */
function dropOrphans() {
  const built = [join(ROOT, "dist/web"), join(ROOT, "dist/bundle")];
  for (const file of filesUnder(join(ROOT, "dist"))) {
    const match = /^(.*)\.js(\.map)?$/.exec(relative(join(ROOT, "dist"), file));
    if (!match || built.some((directory) => file.startsWith(directory))) continue;
    if (!existsSync(join(ROOT, "src", `${match[1]}.ts`))) {
      rmSync(file);
      rmSync(join(ROOT, "dist/.tsbuildinfo"), { force: true });
    }
  }
}

function filesUnder(path) {
  if (!existsSync(path)) return [];
  if (statSync(path).isFile()) return [path];
  return readdirSync(path, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort();
}

function run(command, args) {
  const { status, error } = spawnSync(command, args, { cwd: ROOT, stdio: "inherit" });
  if (error) throw error;
  if (status !== 0) throw new Error(`build failed: ${relative(ROOT, args[0])} exited with ${status}`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  try {
    await build();
  } catch (error) {
    console.error(error.message);
    process.exitCode = 1;
  }
}
