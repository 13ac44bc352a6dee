import { readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";
import { EXIT } from "./base/errors.ts";
import { RUN_STATES } from "./run/status.ts";

/** What docs/operating.md tells people to look for must be what there is: no less, and nothing that is gone. */

const source = dirname(new URL(import.meta.url).pathname);
const operating = readFileSync(join(source, "../docs/operating.md"), "utf8");
const files = readdirSync(source, { recursive: true, encoding: "utf8" }).filter(
  (file) => file.endsWith(".ts") && !file.endsWith(".test.ts"),
);
const text = files.map((file) => readFileSync(join(source, file), "utf8")).join("\n");

function section(title: string): string {
  const from = operating.indexOf(`\n## ${title}\n`);
  expect(from, title).toBeGreaterThan(0);
  return operating.slice(from, operating.indexOf("\n## ", from + 1));
}

function firstCells(title: string): string {
  const rows = section(title).matchAll(/^\| (.*?) \|/gm);
  return [...rows].map(([, cell]) => cell).join(" ");
}

test("every event that is logged stands there, and every one that stands there is logged", () => {
  // log.info("a.b", #log[level]("a.b", { event: "a.b"; what a name ends with may be filled in.
  const calls = text.matchAll(
    /(?:\.(?:debug|info|warn|error)|\[level\])\(\s*["`]([a-z_]+\.[a-z_-]+)(\$\{\w+\})?["`]|event\(\s*"([a-z_]+\.[a-z_-]+)"/g,
  );
  const logged = new Set([...calls].map(([, name, rest, other]) => (name ?? other!) + (rest ? "*" : "")));
  const told = new Set([...firstCells("Events").matchAll(/`([a-z_]+\.[a-z_-]+)`/g)].map(([, name]) => name!));
  expect(logged.size).toBeGreaterThan(40);
  const isTold = (name: string) =>
    name.endsWith("*") ? [...told].some((one) => one.startsWith(name.slice(0, -1))) : told.has(name);
  expect([...logged].filter((name) => !isTold(name))).toEqual([]);
  const isLogged = (name: string) =>
    logged.has(name) || [...logged].some((one) => one.endsWith("*") && name.startsWith(one.slice(0, -1)));
  expect([...told].filter((name) => !isLogged(name))).toEqual([]);
});

test("every metric stands there, and no other", () => {
  const metrics = readFileSync(join(source, "monitor/metrics.ts"), "utf8");
  const made = new Set([...metrics.matchAll(/"(forebay_[a-z0-9_]+)"/g)].map(([, name]) => name!));
  const told = new Set(
    [...firstCells("Page, API and metrics").matchAll(/`(forebay_[a-z0-9_]+)`/g)].map(([, name]) => name!),
  );
  expect(made.size).toBeGreaterThan(10);
  expect([...told].sort()).toEqual([...made].sort());
});

test("every state and every exit code stands there", () => {
  const states = firstCells("States").split(/,? /);
  expect(RUN_STATES.filter((state) => !states.includes(state))).toEqual([]);
  const codes = firstCells("Exit codes").split(/,? /);
  // A bug has no advice but its own message.
  const all = Object.entries(EXIT).filter(([name]) => name !== "bug");
  expect(all.filter(([, code]) => !codes.includes(String(code)))).toEqual([]);
});
