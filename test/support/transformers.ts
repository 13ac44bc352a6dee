import { existsSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import type { EngineCommand } from "../../src/engine/child.ts";
import { engineEnvironment } from "../../src/engine/environment.ts";
import { transformersEngineCommand } from "../../src/engine/transformers.ts";

export const ROOT = fileURLToPath(new URL("../..", import.meta.url));
export const VENV_PYTHON = join(ROOT, ".cache/venv/bin/python");

/** The transformers engine of the tests' own environment. Throws what to run where that is not there. */
export function transformersCommand(extra: Record<string, string> = {}): EngineCommand {
  if (!existsSync(VENV_PYTHON)) throw new Error("needs torch: node scripts/setup.mjs --python");
  const env = engineEnvironment({ PATH: process.env.PATH, HOME: process.env.HOME }, { extra });
  return transformersEngineCommand({ python: VENV_PYTHON, env });
}

/** A folder for PYTHONPATH with which every Python prints to stdout before anything of ours runs, and all the time. */
export function printingPythonPath(): string {
  const directory = mkdtempSync(join(tmpdir(), "forebay-printing-"));
  writeFileSync(
    join(directory, "sitecustomize.py"),
    `
import os, threading, time
print("stray, early", flush=True)
def go_on():
    while True:
        os.write(1, b"stray\\n")
        time.sleep(0.005)
threading.Thread(target=go_on, daemon=True).start()
`,
  );
  return directory;
}
