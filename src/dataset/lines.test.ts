import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, it } from "vitest";
import { readLines } from "./lines.ts";

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "lines-"));
});
afterAll(() => {
  rmSync(directory, { recursive: true, force: true });
});

async function linesOf(content: string | Buffer, options = {}): Promise<[number, string][]> {
  const path = join(directory, "file");
  writeFileSync(path, content);
  const found: [number, string][] = [];
  for await (const { bytes, starts, ends, numbers } of readLines(path, options)) {
    for (const [i, start] of starts.entries())
      found.push([numbers[i]!, bytes.toString("utf8", start, ends[i])]);
  }
  return found;
}

it.each<[string, string, [number, string][]]>([
  ["no file content", "", []],
  ["one line without an end", "a", [[1, "a"]]],
  [
    "blank lines",
    "\n\na\n \t\r\nb\n\n",
    [
      [3, "a"],
      [5, "b"],
    ],
  ],
  [
    "a byte order mark",
    "\ufeffa\nb",
    [
      [1, "   a"],
      [2, "b"],
    ],
  ],
])("%s: lines and their numbers", async (_, content, expected) => {
  expect(await linesOf(content)).toEqual(expected);
});

it("lines of any length, across the ends of reads, are whole", async () => {
  const mib = 1024 * 1024;
  const lengths = [
    1,
    2 * mib - 2,
    1,
    5 * mib,
    3,
    2 * mib - 1,
    2 * mib,
    700_000,
    700_000,
    700_000,
    9 * mib,
    1,
  ];
  const lines = lengths.map((length, i) => String.fromCharCode(97 + i).repeat(length));
  const expected = lines.map((line, i) => [i + 1, line]);
  const same = (found: [number, string][]) =>
    found.length === expected.length && found.every(([n, line], i) => n === i + 1 && line === lines[i]);
  expect(same(await linesOf(lines.join("\n")))).toBe(true);
  expect(same(await linesOf(`${lines.join("\n")}\n`))).toBe(true);
});

it("a line over the cap is refused by its number, in bounded memory", async () => {
  const content = Buffer.concat([Buffer.from("a\nb\n"), Buffer.alloc(12_000_000, 0x78)]);
  await expect(linesOf(content, { lineBytesMax: 1_000_000 })).rejects.toThrow(
    "line 3: longer than 1000000 bytes",
  );
});

it("a file that is not there is named", async () => {
  const lines = readLines(join(directory, "none"));
  await expect(lines.next()).rejects.toMatchObject({ message: "no such file" });
});
