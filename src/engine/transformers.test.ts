import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { choosePython, LEAST } from "./transformers.ts";

function python(file: string): string {
  return readFileSync(fileURLToPath(new URL(`../../python/${file}`, import.meta.url)), "utf8");
}

test("the least versions are the same here, in the child and in its package", () => {
  expect(leastOf("LEAST")).toEqual(LEAST);
  const packages = [...python("pyproject.toml").matchAll(/"(\w+)>=(\d+)\.(\d+)"/g)]
    .filter(([, name]) => !["setuptools", "boto3"].includes(name!))
    .map(([, name, major, minor]) => [name, [Number(major), Number(minor)]]);
  // One model over several GPUs is the child's to ask for alone.
  expect(Object.fromEntries(packages)).toEqual({ ...LEAST, ...leastOf("SPREAD_LEAST") });
});

/** A table of versions.py. */
function leastOf(table: string): typeof LEAST {
  const [, entries] = new RegExp(`^${table} = \\{(.*)\\}$`, "m").exec(python("forebay/engine/versions.py"))!;
  const found = [...entries!.matchAll(/"(\w+)": \((\d+), (\d+)\)/g)];
  return Object.fromEntries(found.map(([, name, major, minor]) => [name, [Number(major), Number(minor)]]));
}

test.each([
  ["/opt/python", { VIRTUAL_ENV: "/venv" }, "/opt/python"],
  [null, { VIRTUAL_ENV: "/venv", CONDA_PREFIX: "/conda" }, "/venv/bin/python"],
  [null, { CONDA_PREFIX: "/conda" }, "/conda/bin/python"],
  [null, {}, "python3"],
])("given %s in %o, %s is meant", (given, env, meant) => {
  expect(choosePython(given, env)).toBe(meant);
});
