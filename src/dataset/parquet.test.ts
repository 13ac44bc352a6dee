import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parquetWriteBuffer } from "hyparquet-writer";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { openDataset } from "./open.ts";
import { HybridDecoder } from "./rle-hybrid.ts";

const FIXTURES = new URL("../../fixtures/parquet/", import.meta.url).pathname;
const names = readdirSync(FIXTURES).filter((name) => name.endsWith(".parquet"));
const reference: { ids: number[][]; masks: number[][] } = JSON.parse(
  readFileSync(join(FIXTURES, "rows.json"), "utf8"),
);

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "parquet-"));
});
afterAll(() => {
  rmSync(directory, { recursive: true, force: true });
});

async function rowsOf(path: string) {
  const found = { ids: [] as number[][], masks: [] as number[][] };
  for await (const batch of (await openDataset(path)).batches()) {
    let at = 0;
    for (const length of batch.lengths) {
      found.ids.push([...batch.ids.subarray(at, at + length)]);
      if (batch.lossMask) found.masks.push([...batch.lossMask.subarray(at, at + length)]);
      at += length;
    }
  }
  return found;
}

async function refusal(path: string): Promise<RunError> {
  const error = await rowsOf(path).catch((e: unknown) => e);
  expect(error).toBeInstanceOf(RunError);
  return error as RunError;
}

/** A file of one or two columns of lists. */
function write(name: string, columns: Record<string, unknown[]>, types: Record<string, string> = {}): string {
  const path = join(directory, `${name}.parquet`);
  const entries = Object.entries(columns);
  const schema = entries.flatMap(([column]) => [
    { name: column, repetition_type: "OPTIONAL" as const, num_children: 1, converted_type: "LIST" as const },
    { name: "list", repetition_type: "REPEATED" as const, num_children: 1 },
    { name: "element", repetition_type: "OPTIONAL" as const, type: (types[column] ?? "INT64") as "INT64" },
  ]);
  const bytes = parquetWriteBuffer({
    columnData: entries.map(([column, data]) => ({ name: column, data })),
    schema: [{ name: "root", num_children: entries.length }, ...schema],
  });
  writeFileSync(path, new Uint8Array(bytes));
  return path;
}

describe("every way that pyarrow writes the same rows", () => {
  it("has its fixtures", () => {
    expect(names.length).toBe(18);
  });

  it.each(names)("%s gives them, empty rows and rows over page ends included", async (name) => {
    expect(await rowsOf(join(FIXTURES, name))).toEqual(reference);
  });
});

describe("rows that are no rows", () => {
  const ids = [[1n, 2n], [3n], []];
  it.each<[string, Record<string, unknown[]>, string]>([
    [
      "a negative id",
      { input_ids: [[1n], [2n, -3n]] },
      "row 1: expected token ids of 0 to 2147483647, found -3",
    ],
    [
      "an id over int32",
      { input_ids: [[1n], [2n, 2n ** 32n]] },
      "row 1: input_ids holds a value that is no int32",
    ],
    [
      "a mask of another length",
      { input_ids: ids, loss_mask: [[1n, 1n], [1n, 1n], []] },
      "row 1: expected a loss_mask of 1",
    ],
    [
      "a mask of 3",
      { input_ids: ids, loss_mask: [[1n, 0n], [3n], []] },
      "row 1: expected loss_mask values of 0 or 1, found 3",
    ],
    ["a null row", { input_ids: [[1n], [2n], null] }, "row 2: input_ids is null"],
    ["a null id", { input_ids: [[1n], [2n, null]] }, "row 1: input_ids holds null"],
  ])("%s is refused and its row named", async (name, columns, message) => {
    const error = await refusal(write(name.replaceAll(" ", "-"), columns));
    expect(error.message).toContain(message);
    expect(error.exit).toBe(EXIT.configuration);
  });

  it("a missing column names those that are there", async () => {
    expect((await refusal(write("missing", { tokens: ids }))).message).toContain("found the columns: tokens");
  });

  it("a column of another type says what was found", async () => {
    const path = write("doubles", { input_ids: [[1.5, 2]] }, { input_ids: "DOUBLE" });
    expect((await refusal(path)).message).toContain("found DOUBLE");
  });
});

it("a page whose checksum differs is refused", async () => {
  const bytes = readFileSync(join(FIXTURES, "checksums.parquet"));
  let refused = 0;
  for (let at = 200; at < 3_000; at += 97) {
    const damaged = Buffer.from(bytes);
    damaged[at]! ^= 0x10;
    const path = join(directory, "damaged.parquet");
    writeFileSync(path, damaged);
    expect((await refusal(path)).exit).toBe(EXIT.integrity);
    refused += 1;
  }
  expect(refused).toBeGreaterThan(20);
});

describe("the hybrid of runs and packed bits", () => {
  // 0b00000011: one group of eight packed values. 8 << 1: a run of eight.
  const bytes = Uint8Array.of(3, 0b10001000, 0b11000110, 0b11111010, 8 << 1, 5);

  it("gives the same values in one piece and in many", () => {
    const whole = new Int32Array(16);
    new HybridDecoder(bytes, 0, bytes.length, 3).fill(whole);
    // Source of the first eight: parquet-format Encodings.md, the example of bit packing 0 to 7.
    expect([...whole]).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 5, 5, 5, 5, 5, 5, 5, 5]);
    const decoder = new HybridDecoder(bytes, 0, bytes.length, 3);
    const pieces = [1, 4, 6, 0, 5].map((count) => {
      const piece = new Uint8Array(count);
      decoder.fill(piece);
      return [...piece];
    });
    expect(pieces.flat()).toEqual([...whole]);
  });

  it.each([
    ["too few values", [8 << 1, 5], 9],
    ["a run of nothing", [0, 5], 1],
    ["a group of nothing", [1, 5], 1],
    ["a length without end", [0x80, 0x80, 0x80, 0x80, 0x80, 0x80], 1],
    ["packed values beyond the end", [(9 << 1) | 1, 1, 2, 3], 72],
  ])("%s are refused", (_, run, count) => {
    const decoder = new HybridDecoder(Uint8Array.from(run), 0, run.length, 3);
    expect(() => decoder.fill(new Uint8Array(count))).toThrow();
  });
});
