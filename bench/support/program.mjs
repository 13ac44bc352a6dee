import { spawn } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));

/** Runs the built CLI; resolves with its exit code. `onChild` gets the process. */
export function forebay(args, { env, cwd, onChild }) {
  const child = spawn(process.execPath, [join(ROOT, "dist/cli.js"), ...args], {
    cwd,
    env: { PATH: process.env.PATH, HOME: cwd, XDG_STATE_HOME: join(cwd, "state"), ...env },
    stdio: ["ignore", "inherit", "inherit"],
  });
  onChild?.(child);
  return new Promise((resolve, reject) => {
    child.on("error", reject);
    child.on("exit", (code, signal) => resolve(code ?? signal));
  });
}

/** The events of a run directory so far, oldest first. */
export function eventsOf(runDirectory) {
  const path = join(runDirectory, "events.log");
  if (!existsSync(path)) return [];
  return readFileSync(path, "utf8")
    .split("\n")
    .filter((line) => line.endsWith("}"))
    .map((line) => JSON.parse(line));
}

/** Milliseconds since 1970 of the first (or last) event of that name. */
export function timeOf(events, name, { last = false } = {}) {
  const found = events.filter(({ event }) => event === name);
  const event = last ? found.at(-1) : found[0];
  if (!event) throw new Error(`the run's log has no event ${name}`);
  return Date.parse(event.at);
}
