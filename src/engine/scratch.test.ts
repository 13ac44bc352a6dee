import { mkdirSync, readFileSync, statSync, symlinkSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryDirectory } from "../../test/support/fake-engine.ts";
import { makeScratch } from "./scratch.ts";

test("the event loop turns while a scratch file is written", async () => {
  let turns = 0;
  let isMade = false;
  const turn = () => {
    turns += 1;
    if (!isMade) setImmediate(turn);
  };
  setImmediate(turn);
  const file = await makeScratch(join(temporaryDirectory(), "scratch"), "probe", 32 * 2 ** 20);
  isMade = true;
  // At least once between two of its pieces.
  expect(turns).toBeGreaterThanOrEqual(32);
  expect(statSync(file).size).toBe(32 * 2 ** 20);
});

test("it is made anew: of the size that is asked for, all zeros, with blocks of its own", async () => {
  const directory = temporaryDirectory();
  await makeScratch(directory, "probe", 3_000_000);
  const file = await makeScratch(directory, "probe", 1_500_001);
  expect(readFileSync(file).equals(Buffer.alloc(1_500_001))).toBe(true);
  expect(statSync(file).blocks * 512).toBeGreaterThanOrEqual(1_500_001);
});

test("a full disk is told apart from other failures", async () => {
  const directory = temporaryDirectory();
  symlinkSync("/dev/full", join(directory, "full.bin"));
  await expect(makeScratch(directory, "full", 10)).rejects.toMatchObject({ remedy: "retry", exit: 8 });
  mkdirSync(join(directory, "folder.bin"));
  await expect(makeScratch(directory, "folder", 10)).rejects.toMatchObject({ remedy: "stop", exit: 8 });
});
