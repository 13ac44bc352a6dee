import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { EXIT, RunError } from "../base/errors.ts";
import type { EngineCommand } from "./child.ts";

export interface TransformersOptions {
  /** A Python to run: a path or a name in `env`'s PATH. */
  python: string;
  /** The child's whole environment. */
  env: Record<string, string>;
  /** Its number among the engines of this machine: it chooses one of several visible GPUs. Default 0. */
  number?: number;
  /** The folder of `run_engine.py`. Default: the one that is shipped with this program. */
  packageDirectory?: string;
}

/** What the child needs, as `pip` names it; python/forebay/engine/versions.py and pyproject.toml hold the same. */
export const LEAST: Record<string, [major: number, minor: number]> = {
  torch: [2, 13],
  transformers: [5, 19],
  safetensors: [0, 6],
  numpy: [1, 26],
  crc32c: [2, 7],
};

/** From dist/engine/ and src/engine/ alike. */
const SHIPPED = fileURLToPath(new URL("../../python", import.meta.url));

/** Prints the versions of what is installed without importing any of it: torch alone takes seconds. */
const PROBE = `
import json, sys
from importlib.metadata import version, PackageNotFoundError
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in sys.argv[1:]:
    try: found[name] = version(name)
    except PackageNotFoundError: pass
print(json.dumps(found))
`;

/**
 * How to start the transformers engine's child. As for the onnx child, the shell moves the descriptors before Python
 * runs at all: requests on 3, answers on 4, and whatever a library prints, even from C, goes to stderr.
 */
export function transformersEngineCommand(options: TransformersOptions): EngineCommand {
  const { python, env, number = 0, packageDirectory = SHIPPED } = options;
  const moveDescriptors = 'exec "$0" "$@" 3<&0 4>&1 </dev/null >&2';
  return {
    name: "transformers",
    file: "/bin/sh",
    args: ["-c", moveDescriptors, python, join(packageDirectory, "run_engine.py"), "3", "4", String(number)],
    env,
  };
}

/** Which Python a person means: the one they gave, that of an active virtual environment, `python3`. */
export function choosePython(
  given: string | null,
  env: Readonly<Record<string, string | undefined>>,
): string {
  if (given !== null) return given;
  const active = env.VIRTUAL_ENV ?? env.CONDA_PREFIX;
  return active ? join(active, "bin/python") : "python3";
}

/**
 * The versions of what the engine needs. Throws (configuration) with the command to run where the Python is not
 * there or too old, or a package is missing or too old.
 */
export function needPython(python: string, env: Record<string, string>): Record<string, string> {
  const child = spawnSync(python, ["-c", PROBE, ...Object.keys(LEAST)], { env, encoding: "utf8" });
  if (child.error || child.status !== 0) {
    const cause = child.error?.message ?? (child.stderr.trim().split("\n").at(-1) || `exit ${child.status}`);
    throw refused(python, `it cannot be run: ${cause}`, "name one that has torch: --python PATH/bin/python");
  }
  const found = JSON.parse(child.stdout) as Record<string, string>;
  if (isOlder(found.python!, [3, 10])) {
    throw refused(
      python,
      `expected Python 3.10 or newer, found ${found.python}`,
      "name a newer one: --python PATH",
    );
  }
  const wanting = Object.entries(LEAST).flatMap(([name, least]) => {
    const version = found[name];
    if (version === undefined) return [`${name} is not installed`];
    return isOlder(version, least) ? [`${name} is ${version}, expected ${least.join(".")} or newer`] : [];
  });
  if (wanting.length > 0) {
    const packages = Object.entries(LEAST).map(([name, least]) => `'${name}>=${least.join(".")}'`);
    throw refused(python, wanting.join("; "), `${python} -m pip install ${packages.join(" ")}`);
  }
  return found;
}

function isOlder(version: string, [major, minor]: [number, number]): boolean {
  const [foundMajor = 0, foundMinor = 0] = version.split(".").map((part) => Number.parseInt(part, 10));
  return foundMajor < major || (foundMajor === major && foundMinor < minor);
}

function refused(python: string, message: string, hint: string): RunError {
  return new RunError({
    op: "start the transformers engine",
    subject: python,
    message,
    safe: "nothing was started",
    hint,
    exit: EXIT.configuration,
  });
}
