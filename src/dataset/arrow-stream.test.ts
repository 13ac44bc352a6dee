import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import * as arrow from "apache-arrow";
import fc from "fast-check";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { openDataset } from "./open.ts";

/*
 * What Arrow's own writer writes is read back, whatever the types, batches and other columns.
 */

let root: string;
let directory: string;
let count = 0;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), "arrow-"));
});
beforeEach(() => {
  count += 1;
  directory = join(root, String(count));
});
afterAll(() => {
  rmSync(root, { recursive: true, force: true });
});

type Lists = (number[] | null)[];

/** A column as vectors, one for each record batch. */
type Column = (rows: Lists) => arrow.Vector;

const list = (type: arrow.DataType, isLarge = false): Column => {
  const item = new arrow.Field("item", type, true);
  const listType = isLarge ? new arrow.LargeList(item) : new arrow.List(item);
  return (rows) => {
    const convert = (value: number) => {
      if (arrow.DataType.isBool(type)) return value === 1;
      return arrow.DataType.isInt(type) && type.bitWidth === 64 ? BigInt(value) : value;
    };
    return arrow.vectorFromArray(
      rows.map((row) => row?.map(convert) ?? null),
      listType as arrow.List,
    );
  };
};

function save(batches: Record<string, [Column, Lists]>[]): string {
  mkdirSync(directory, { recursive: true });
  const tables = batches.map(
    (columns) =>
      new arrow.Table(
        Object.fromEntries(Object.entries(columns).map(([name, [column, rows]]) => [name, column(rows)])),
      ),
  );
  const [first, ...rest] = tables;
  const bytes = arrow.tableToIPC(first!.concat(...rest), "stream");
  writeFileSync(join(directory, "data.arrow"), bytes);
  writeFileSync(join(directory, "state.json"), JSON.stringify({ _data_files: [{ filename: "data.arrow" }] }));
  return directory;
}

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

const idTypes = [
  new arrow.Int32(),
  new arrow.Int64(),
  new arrow.Uint32(),
  new arrow.Uint16(),
  new arrow.Int16(),
  new arrow.Uint64(),
];
const maskTypes = [
  new arrow.Int64(),
  new arrow.Int32(),
  new arrow.Int8(),
  new arrow.Uint8(),
  new arrow.Bool(),
];
const others: Column[] = [
  (rows) =>
    arrow.vectorFromArray(
      rows.map((_, i) => "text".repeat(i % 4)),
      new arrow.Utf8(),
    ),
  (rows) =>
    arrow.vectorFromArray(
      rows.map((_, i) => (i % 2 ? null : i / 3)),
      new arrow.Float64(),
    ),
  (rows) =>
    arrow.vectorFromArray(
      rows.map((_, i) => i % 3 === 0),
      new arrow.Bool(),
    ),
  (rows) => {
    const inner = new arrow.Struct<arrow.TypeMap>([
      new arrow.Field("a", new arrow.Int32(), true),
      new arrow.Field("b", new arrow.List(new arrow.Field("item", new arrow.Utf8(), true)), true),
    ]);
    return arrow.vectorFromArray(
      rows.map((_, i) => ({ a: i, b: ["x"] })),
      inner,
    );
  },
];

it("any rows in any batches, types and company are read back", async () => {
  const row = fc.array(fc.integer({ min: 0, max: 32_767 }), { maxLength: 9 });
  await fc.assert(
    fc.asyncProperty(
      fc.array(fc.array(row, { minLength: 1, maxLength: 6 }), { minLength: 1, maxLength: 6 }),
      fc.constantFrom(...idTypes),
      fc.option(fc.constantFrom(...maskTypes), { nil: null }),
      fc.boolean(),
      fc.shuffledSubarray([0, 1, 2, 3]),
      async (batches, idType, maskType, isLarge, company) => {
        const masks = batches.map((rows) => rows.map((ids) => ids.map((id) => id % 2)));
        const path = save(
          batches.map((rows, b) => ({
            ...Object.fromEntries(company.slice(0, 2).map((i) => [`before${i}`, [others[i]!, rows]])),
            ...(maskType ? { loss_mask: [list(maskType, isLarge), masks[b]!] } : {}),
            ...Object.fromEntries(company.slice(2).map((i) => [`between${i}`, [others[i]!, rows]])),
            input_ids: [list(idType, isLarge), rows],
          })) as Record<string, [Column, Lists]>[],
        );
        expect(await rowsOf(path)).toEqual({ ids: batches.flat(), masks: maskType ? masks.flat() : [] });
      },
    ),
    { numRuns: 150 },
  );
});

describe("rows that are no rows", () => {
  const int64 = list(new arrow.Int64());
  it.each<[string, Record<string, [Column, Lists]>, string]>([
    [
      "a negative id",
      { input_ids: [int64, [[1], [2, -3]]] },
      "row 1: expected token ids of 0 to 2147483647, found -3",
    ],
    [
      "an id over int32",
      { input_ids: [int64, [[1], [2, 2 ** 31]]] },
      "row 1: input_ids holds a value that is no int32",
    ],
    [
      "an unsigned id over int32",
      { input_ids: [list(new arrow.Uint32()), [[1, 2 ** 31]]] },
      "row 0: input_ids holds a value that is no int32",
    ],
    [
      "a mask of another length",
      { input_ids: [int64, [[1], [2]]], loss_mask: [int64, [[1], [1, 1]]] },
      "row 1: expected a loss_mask of 1 values",
    ],
    [
      "a mask of 3",
      { input_ids: [int64, [[1], [2]]], loss_mask: [int64, [[1], [3]]] },
      "row 1: expected loss_mask values of 0 or 1, found 3",
    ],
    ["a null row", { input_ids: [int64, [[1], null]] }, "the column input_ids holds null values"],
    ["a missing column", { tokens: [int64, [[1]]] }, "found the columns: tokens"],
    [
      "a column of floats",
      { input_ids: [list(new arrow.Float64()), [[1.5]]] },
      "found Arrow type list<float>",
    ],
    ["a column of text", { input_ids: [others[0]!, [[1]]] }, "found Arrow type utf8"],
  ])("%s is refused", async (_, columns, message) => {
    const error = await refusal(save([columns]));
    expect(error.message).toContain(message);
    expect(error.exit).toBe(EXIT.configuration);
  });

  it("a row in a later batch is named by its number in the dataset", async () => {
    const path = save([{ input_ids: [int64, [[1], [2]]] }, { input_ids: [int64, [[3], [-4]]] }]);
    expect((await refusal(path)).message).toContain("row 3: ");
  });
});

it("Arrow's file format is refused by name", async () => {
  const path = save([{ input_ids: [list(new arrow.Int32()), [[1]]] }]);
  const table = arrow.tableFromArrays({ input_ids: [1] });
  writeFileSync(join(path, "data.arrow"), arrow.tableToIPC(table, "file"));
  expect((await refusal(path)).message).toContain("found its file format (ARROW1)");
});

it("no flipped byte crashes the reader or makes it hang", async () => {
  const path = save([
    { input_ids: [list(new arrow.Int32()), [[1, 2], [3]]] },
    { input_ids: [list(new arrow.Int32()), [[4]]] },
  ]);
  const { readFileSync } = await import("node:fs");
  const file = join(path, "data.arrow");
  const whole = readFileSync(file);
  for (let at = 0; at < whole.length; at += 1) {
    for (const flip of [0x01, 0x80, 0xff]) {
      const bytes = Buffer.from(whole);
      bytes[at]! ^= flip;
      writeFileSync(file, bytes);
      const outcome = await rowsOf(path).catch((error: unknown) => error);
      if (outcome instanceof Error) expect(outcome).toBeInstanceOf(RunError);
    }
  }
}, 60_000);
