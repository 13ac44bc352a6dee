import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { expect, test } from "vitest";

/** Which folder may import which; docs/architecture.md draws it. commands/ and main.ts wire the parts and may import all. */
const MAY_IMPORT: Record<string, string[]> = {
  base: [],
  dataset: ["base"],
  model: ["base"],
  engine: ["base", "model"],
  pack: ["base"],
  plan: ["base", "dataset", "model", "pack"],
  store: ["base"],
  spool: ["base", "store", "pack"],
  run: ["base", "dataset", "model", "engine", "plan", "pack", "store", "spool"],
  control: ["base"],
  monitor: ["base", "run"],
  config: ["base"],
};

/** Heavy or privileged packages, and the only place that may load each. */
const ONLY_FROM: [RegExp, RegExp][] = [
  [/^onnxruntime-node/, /^engine\/onnx\//],
  [/^@aws-sdk\/client-s3/, /^store\/s3/],
  [/^hono|^@hono\//, /^monitor\//],
  [/^commander/, /^(main\.ts|commands\/)/],
];

const source = dirname(new URL(import.meta.url).pathname);
const files = readdirSync(source, { recursive: true, encoding: "utf8" }).filter((f) => f.endsWith(".ts"));
const shipped = files.filter((f) => !f.endsWith(".test.ts"));

test("parts import only along the arrows", () => {
  const crossings: string[] = [];
  for (const file of shipped) {
    const part = file.split("/")[0]!;
    const allowed = MAY_IMPORT[part];
    if (!allowed) continue;
    for (const target of importsOf(file)) {
      if (!target.startsWith(".")) continue;
      const to = relative(source, resolve(source, dirname(file), target)).split("/")[0]!;
      if (to !== part && !allowed.includes(to)) crossings.push(`${file} -> ${to}`);
    }
  }
  expect(shipped.length).toBeGreaterThan(20);
  expect(crossings).toEqual([]);
});

test("heavy packages are loaded only where they belong", () => {
  const strays = shipped.flatMap((file) =>
    importsOf(file)
      .filter((target) => ONLY_FROM.some(([name, place]) => name.test(target) && !place.test(file)))
      .map((target) => `${file} -> ${target}`),
  );
  expect(strays).toEqual([]);
});

/** What is begun often and must begin fast, and what none of it may load before it is asked for. */
const QUICK_STARTS = [
  "main.ts",
  "commands/run.ts",
  "commands/supervise.ts",
  "spool/files-worker.ts",
  "spool/upload-worker.ts",
];
const SLOW_TO_LOAD =
  /^(@aws-sdk|@smithy|apache-arrow|hyparquet|onnxruntime-node|tokenizers|@huggingface|yaml)\b/;

test.each(QUICK_STARTS)("%s loads nothing slow on its start", (entry) => {
  const reached = loadedWith(entry);
  expect([...reached].filter((target) => SLOW_TO_LOAD.test(target))).toEqual([]);
  // The verbs are loaded one at a time.
  if (entry === "main.ts") expect(reached).not.toContain("commands/run.ts");
  // The control: what is loaded is found.
  expect(loadedWith("commands/tokenize.ts")).toContain("tokenizers");
});

test("parts are handed their environment: no process.env, no process.exit outside commands and entry files", () => {
  const entries = /^(commands\/|(cli|main)\.ts|.*(child|worker|keeper)\.ts$)/;
  const strays = shipped.filter(
    (file) =>
      !entries.test(file) &&
      /\bprocess\.(env|exit)\b/.test(withoutComments(readFileSync(join(source, file), "utf8"))),
  );
  expect(strays).toEqual([]);
});

/** Files of ours and packages that come with `file` by static imports. */
function loadedWith(file: string, found = new Set<string>()): Set<string> {
  const text = withoutComments(readFileSync(join(source, file), "utf8"));
  for (const [, isType, target] of text.matchAll(/^(?:import|export) (type )?[^"';]*?"([^"]+)";/gm)) {
    if (isType || found.has(target!)) continue;
    if (!target!.startsWith(".")) found.add(target!);
    else {
      const path = relative(source, resolve(source, dirname(file), target!));
      if (found.has(path)) continue;
      found.add(path);
      loadedWith(path, found);
    }
  }
  return found;
}

function importsOf(file: string): string[] {
  const text = readFileSync(join(source, file), "utf8");
  return [...text.matchAll(/(?:from|import\()\s*"([^"]+)"|^import "([^"]+)"/gm)].map((m) => (m[1] ?? m[2])!);
}

function withoutComments(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");
}
