import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, expect, test } from "vitest";
import { resolveModel } from "./hub.ts";

const root = mkdtempSync(join(tmpdir(), "forebay-hub-"));
afterAll(() => rmSync(root, { recursive: true }));

/** A cache as huggingface_hub lays it out: files are links from a snapshot to blobs. */
function cached(home: string, id: string, revision: string, refs: boolean): string {
  const repository = join(root, home, "hub", `models--${id.replace("/", "--")}`);
  const snapshot = join(repository, "snapshots", revision);
  for (const directory of [snapshot, join(repository, "blobs"), join(repository, "refs")]) {
    mkdirSync(directory, { recursive: true });
  }
  writeFileSync(join(repository, "blobs/abc"), "{}");
  symlinkSync("../../blobs/abc", join(snapshot, "config.json"));
  if (refs) writeFileSync(join(repository, "refs/main"), `${revision}\n`);
  return snapshot;
}

test("a hub id is the snapshot that main points to, or the only one there is", () => {
  const main = cached("a", "Org/Model-1.5", "1111", true);
  cached("a", "Org/Model-1.5", "2222", false);
  const only = cached("a", "Org/Other", "3333", false);
  const env = { HF_HOME: join(root, "a") };
  expect(resolveModel("Org/Model-1.5", env)).toBe(main);
  expect(resolveModel("Org/Other", env)).toBe(only);
  expect(resolveModel("Org/Other", { HF_HUB_CACHE: join(root, "a/hub"), HF_HOME: "/nowhere" })).toBe(only);
});

test("a model that is not in the cache is refused with the command that fetches it", () => {
  const found = () => resolveModel("Org/Absent", { HF_HOME: join(root, "a") });
  expect(found).toThrow("does not hold a model of this name");
  try {
    found();
  } catch (error) {
    expect(error).toMatchObject({ hint: "hf download Org/Absent", exit: 78 });
  }
});

test("a directory is itself, and what is no hub id is left to whoever opens it", () => {
  expect(resolveModel(root, {})).toBe(root);
  for (const path of ["/no/such/model", "../models/x", "a/b/c", "model"]) {
    expect(resolveModel(path, {})).toBe(path);
  }
});
