import { execFileSync } from "node:child_process";
import { closeSync, mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { open } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { EXIT } from "./errors.ts";
import { type ReadFrom, readExactly, readExactlySync, readUpTo, readUpToSync } from "./read-exactly.ts";

const directory = mkdtempSync(join(tmpdir(), "forebay-read-"));
const file = join(directory, "numbers");
const contents = Buffer.from(Array.from({ length: 100 }, (_, i) => i));
/** The kernel gives a page of this one a call, whatever it is asked for. */
const SLOW_FILE = "/proc/kallsyms";

beforeAll(() => writeFileSync(file, contents));
afterAll(() => rmSync(directory, { recursive: true }));

/** The two ways, called alike. */
const ways = {
  sync: {
    exactly: async (path: string, into: Uint8Array, from: Omit<ReadFrom, "path">) => {
      const fd = openSync(path, "r");
      try {
        return readExactlySync(fd, into, { path, ...from });
      } finally {
        closeSync(fd);
      }
    },
    upTo: async (path: string, into: Uint8Array, startByte: number) => {
      const fd = openSync(path, "r");
      try {
        return readUpToSync(fd, into, startByte);
      } finally {
        closeSync(fd);
      }
    },
  },
  async: {
    exactly: async (path: string, into: Uint8Array, from: Omit<ReadFrom, "path">) => {
      await using handle = await open(path);
      return await readExactly(handle, into, { path, ...from });
    },
    upTo: async (path: string, into: Uint8Array, startByte: number) => {
      await using handle = await open(path);
      return await readUpTo(handle, into, startByte);
    },
  },
};

describe.each(Object.entries(ways))("read exactly, %s", (_name, { exactly, upTo }) => {
  it("fills a view from an offset, and nothing beside it", async () => {
    const memory = new Uint8Array(12).fill(255);
    const view = memory.subarray(2, 10);
    expect(await exactly(file, view, { startByte: 90 })).toBe(view);
    expect([...memory]).toEqual([255, 255, 90, 91, 92, 93, 94, 95, 96, 97, 255, 255]);
    expect(await upTo(file, view, 40)).toBe(8);
    expect([...view]).toEqual([40, 41, 42, 43, 44, 45, 46, 47]);
  });

  it("goes on where a system call gives less than it was asked for", async () => {
    const expected = execFileSync("head", ["--bytes=20010", SLOW_FILE]).subarray(10);
    const into = new Uint8Array(20_000);
    await exactly(SLOW_FILE, into, { startByte: 10 });
    expect(Buffer.compare(into, expected)).toBe(0);
    expect(await upTo(SLOW_FILE, into.fill(0), 10)).toBe(20_000);
    expect(Buffer.compare(into, expected)).toBe(0);
  });

  it("says where a file ends that is too short, and what was expected", async () => {
    await expect(exactly(file, new Uint8Array(20), { startByte: 90 })).rejects.toMatchObject({
      name: "RunError",
      subject: file,
      message: "the file ends at byte 100, expected 110",
      exit: EXIT.integrity,
    });
    await expect(exactly(file, new Uint8Array(1), { startByte: 200 })).rejects.toThrow("ends at byte 200");
    const cut = (endByte: number) => new RangeError(`only ${endByte}`);
    await expect(exactly(file, new Uint8Array(101), { startByte: 0, cut })).rejects.toThrow(
      new RangeError("only 100"),
    );
  });

  it("up to: fewer where the file ends, none past its end or into nothing", async () => {
    const into = new Uint8Array(20);
    expect(await upTo(file, into, 90)).toBe(10);
    expect([...into.subarray(8, 12)]).toEqual([98, 99, 0, 0]);
    expect(await upTo(file, into, 100)).toBe(0);
    expect(await upTo(file, new Uint8Array(0), 0)).toBe(0);
    expect(await exactly(file, new Uint8Array(0), { startByte: 100 })).toHaveLength(0);
  });

  it("passes on what the system throws", async () => {
    await expect(exactly(directory, new Uint8Array(1), { startByte: 0 })).rejects.toThrow("EISDIR");
  });
});
