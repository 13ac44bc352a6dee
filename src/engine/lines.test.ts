import fc from "fast-check";
import { expect, test } from "vitest";
import { LineReader } from "./lines.ts";

test("lines come out whole however the bytes are cut, in UTF-8 too", () => {
  const text = fc.string({ unit: "grapheme" }).map((line) => line.replaceAll("\n", ""));
  fc.assert(
    fc.property(fc.array(text), fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1 }), (lines, cuts) => {
      const found: string[] = [];
      const reader = new LineReader(1 << 20, (line) => found.push(line));
      const bytes = Buffer.from(lines.map((line) => `${line}\n`).join(""));
      for (let at = 0, i = 0; at < bytes.length; i += 1) {
        const length = cuts[i % cuts.length]!;
        expect(reader.push(bytes.subarray(at, at + length))).toBe(true);
        at += length;
      }
      expect(found).toEqual(lines.map((line) => Buffer.from(line).toString()));
      expect(reader.restBytes).toBe(0);
    }),
  );
});

test("a line of exactly the cap passes, one byte more does not, in one chunk or many", () => {
  for (const chunk of [1, 100]) {
    for (const [bytes, passes] of [
      [10, true],
      [11, false],
    ] as const) {
      const found: string[] = [];
      const reader = new LineReader(10, (line) => found.push(line));
      const line = Buffer.from(`${"x".repeat(bytes)}\n`);
      let isOk = true;
      for (let at = 0; at < line.length; at += chunk)
        isOk = reader.push(line.subarray(at, at + chunk)) && isOk;
      expect([isOk, found.length]).toEqual([passes, passes ? 1 : 0]);
    }
  }
});

test("lines before an overlong one are kept, nothing after it", () => {
  const found: string[] = [];
  const reader = new LineReader(4, (line) => found.push(line));
  expect(reader.push(Buffer.from("a\nb\ntoolong\nc\n"))).toBe(false);
  expect(reader.push(Buffer.from("d\n"))).toBe(false);
  expect(found).toEqual(["a", "b"]);
});
