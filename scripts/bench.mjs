#!/usr/bin/env node
// npm run bench -- NAME [ARGS]: builds, then runs bench/NAME.mjs. Its last line is one JSON object.
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "./build.mjs";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const [name, ...args] = process.argv.slice(2);
const names = readdirSync(join(root, "bench"))
  .filter((file) => file.endsWith(".mjs"))
  .map((file) => file.slice(0, -4));
if (!name || !/^[a-z][a-z0-9-]*$/.test(name) || !existsSync(join(root, "bench", `${name}.mjs`))) {
  console.error(`usage: npm run bench -- NAME\nbenches: ${names.join(", ") || "none yet"}`);
  process.exit(2);
}
await build();
const { status } = spawnSync(process.execPath, [join(root, "bench", `${name}.mjs`), ...args], {
  cwd: root,
  stdio: "inherit",
});
process.exitCode = status ?? 1;
