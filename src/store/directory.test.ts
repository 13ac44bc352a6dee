import { mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { type SmallDisk, smallDisk } from "../../test/support/disks.ts";
import { crc32c } from "../base/checksum.ts";
import { DirectoryStore } from "./directory.ts";

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-directory-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const open = (inside = directory) =>
  new DirectoryStore({ kind: "directory", directory: inside, name: "run" });
const put = (store: DirectoryStore, key: string, body: Buffer) =>
  store.put(key, body, { crc32c: crc32c(body), createOnly: true });
const filesIn = (folder: string) => readdirSync(folder, { recursive: true, encoding: "utf8" }).sort();

it("makes nothing before the first PUT, and then only what was put", async () => {
  const store = open();
  expect(await store.head("run.json")).toBeNull();
  expect(filesIn(directory)).toEqual([]);
  await put(store, "packs/0a3/x", Buffer.from("x"));
  expect(filesIn(directory)).toEqual(["run", "run/packs", "run/packs/0a3", "run/packs/0a3/x"]);
});

it("removes with an object the folders that it alone kept", async () => {
  const store = open();
  await put(store, "packs/0a3/x", Buffer.from("x"));
  await put(store, "packs/0b0/y", Buffer.from("y"));
  await store.delete("packs/0a3/x");
  expect(filesIn(directory)).toEqual(["run", "run/packs", "run/packs/0b0", "run/packs/0b0/y"]);
  await put(store, "packs/0a3/x", Buffer.from("again"));
  expect((await store.head("packs/0a3/x"))!.bytes).toBe(5);
});

it("puts again after someone else removed the folders", async () => {
  const store = open();
  await put(store, "a/b/x", Buffer.from("x"));
  rmSync(join(directory, "run"), { recursive: true });
  expect((await put(store, "a/b/x", Buffer.from("x"))).kind).toBe("created");
});

it("does not count a temporary as an object, and sweeps away only those of writers long dead", async () => {
  const store = open();
  mkdirSync(join(directory, "run/packs"), { recursive: true });
  const [old, fresh] = ["old", "new"].map((name) => join(directory, `run/packs/${name}.0123456789ab.tmp`));
  writeFileSync(old!, "half");
  writeFileSync(fresh!, "half");
  utimesSync(old!, new Date(Date.now() - 7_200_000), new Date(Date.now() - 7_200_000));
  for await (const info of store.list("")) expect.unreachable(info.key);
  await store.check();
  expect(filesIn(join(directory, "run/packs"))).toEqual(["new.0123456789ab.tmp"]);
});

it("says what stands in the way when a file has the place of a folder", async () => {
  const store = open();
  await put(store, "x", Buffer.from("x"));
  await expect(put(store, "x/y", Buffer.from("y"))).rejects.toMatchObject({ kind: "io", code: "ENOTDIR" });
  expect(await store.head("x/y")).toBeNull();
  expect(await store.get("x/y", null)).toBeNull();
  expect(await store.head("x")).not.toBeNull();
});

it("writes objects that their owner alone may change", async () => {
  await put(open(), "x", Buffer.from("x"));
  expect(statSync(join(directory, "run/x")).mode & 0o022).toBe(0);
});

describe("on a file system of its own", () => {
  const mount = () => join(directory, "mount");
  let disk: SmallDisk;
  beforeEach(() => {
    disk = smallDisk(mount(), "256k");
  });
  afterEach(() => disk?.remove());

  it("calls a full disk full, leaves nothing of the object, and goes on when there is room", async () => {
    const store = open(mount());
    await put(store, "a", Buffer.alloc(150_000));
    await expect(put(store, "b", Buffer.alloc(150_000))).rejects.toMatchObject({
      kind: "full",
      remedy: "stop",
      exit: 8,
      code: "ENOSPC",
    });
    expect(filesIn(join(mount(), "run"))).toEqual(["a"]);
    await store.delete("a");
    expect((await put(store, "b", Buffer.alloc(150_000))).kind).toBe("created");
  });

  it("calls a read-only disk read-only", async () => {
    const store = open(mount());
    await put(store, "a", Buffer.from("a"));
    disk.readOnly();
    await expect(put(store, "b", Buffer.from("b"))).rejects.toMatchObject({ kind: "read-only", exit: 8 });
    await expect(store.delete("a")).rejects.toMatchObject({ kind: "read-only" });
    expect((await store.get("a", null))!.toString()).toBe("a");
  });
});
