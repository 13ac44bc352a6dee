#!/usr/bin/env node
// `npm start`: installs what is missing, builds what is stale, and runs the demo.
import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "./build.mjs";
import { setupPackages } from "./setup.mjs";

const root = dirname(dirname(fileURLToPath(import.meta.url)));
try {
  setupPackages();
  await build();
} catch (error) {
  console.error(`npm start: ${error.message}`);
  process.exit(1);
}
const { status, signal } = spawnSync(
  process.execPath,
  [join(root, "dist/cli.js"), "demo", ...process.argv.slice(2)],
  {
    cwd: root,
    stdio: "inherit",
  },
);
process.exit(status ?? (signal === "SIGINT" ? 130 : 143));
