import { cpSync, mkdtempSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { crc32 } from "node:zlib";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { openDataset } from "./open.ts";
import type { RowSource } from "./rows.ts";

const FIXTURES = new URL("../../fixtures/datasets/", import.meta.url).pathname;

interface Expected {
  rows: number;
  tokens: number;
  loss_tokens?: number;
  input_ids_crc32: number;
  loss_mask_crc32?: number;
  files: { name: string; rows: number }[];
}

const expected: Record<string, Expected> = JSON.parse(readFileSync(join(FIXTURES, "expected.json"), "utf8"));

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "dataset-"));
});
afterAll(() => {
  rmSync(directory, { recursive: true, force: true });
});

/** A pass over all rows, summed up as expected.json does. */
async function sumUp(source: RowSource) {
  const sum = { rows: 0, tokens: 0, loss_tokens: 0, input_ids_crc32: 0, loss_mask_crc32: 0 };
  for await (const batch of source.batches()) {
    sum.rows += batch.lengths.length;
    sum.tokens += batch.ids.length;
    expect(batch.lengths.reduce((a, b) => a + b, 0)).toBe(batch.ids.length);
    sum.input_ids_crc32 = crc32(bytesOf(batch.ids), sum.input_ids_crc32);
    if (batch.lossMask) {
      const mask = Int32Array.from(batch.lossMask);
      sum.loss_tokens += mask.reduce((a, b) => a + b, 0);
      sum.loss_mask_crc32 = crc32(bytesOf(mask), sum.loss_mask_crc32);
    }
  }
  return sum;
}

function bytesOf(values: Int32Array) {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** What a full pass over `path` throws. */
async function refusal(path: string, split?: string): Promise<RunError> {
  try {
    await sumUp(await openDataset(path, { split }));
  } catch (error) {
    expect(error).toBeInstanceOf(RunError);
    return error as RunError;
  }
  throw new Error(`expected ${path} to be refused`);
}

function write(name: string, content: string): string {
  const path = join(directory, name);
  writeFileSync(path, content);
  return path;
}

describe("every shape that a reader must accept", () => {
  const accepted = Object.keys(expected).filter(
    (name) => !name.startsWith("compressed") && !name.startsWith("legacy"),
  );
  it.each(accepted)("%s gives the expected rows, ids and masks", async (name) => {
    const [path, split] = name.startsWith("dict/") ? ["dict", name.slice(5)] : [name, undefined];
    const sum = await sumUp(await openDataset(join(FIXTURES, path), { split }));
    const { rows, tokens, input_ids_crc32, loss_tokens, loss_mask_crc32 } = expected[name]!;
    expect(sum).toEqual({
      rows,
      tokens,
      input_ids_crc32,
      loss_tokens: loss_tokens ?? 0,
      loss_mask_crc32: loss_mask_crc32 ?? 0,
    });
  });

  it.each(["tokenised.jsonl", "plain.parquet"])("%s gives the same rows", async (name) => {
    const sum = await sumUp(await openDataset(join(FIXTURES, name)));
    expect(sum.input_ids_crc32).toBe(expected.plain!.input_ids_crc32);
    expect(sum.loss_mask_crc32).toBe(expected.plain!.loss_mask_crc32);
  });

  it("the files are listed in row order with size and inode", async () => {
    const source = await openDataset(join(FIXTURES, "sharded-3"));
    expect(source.files.map((file) => file.path.split("/").at(-1))).toEqual(
      expected["sharded-3"]!.files.map((file) => file.name),
    );
    expect(source.files.every((file) => file.bytes > 0 && file.inode > 0)).toBe(true);
  });
});

describe("what is refused", () => {
  it.each([
    ["compressed-lz4", "compressed (LZ4)"],
    ["compressed-zstd", "compressed (Zstandard)"],
    ["legacy-1.18", "layout of datasets 1.18"],
  ])("%s is refused by name, with what to do", async (name, reason) => {
    const error = await refusal(join(FIXTURES, name));
    expect(error.message).toContain(reason);
    expect(error.hint).toContain("save_to_disk");
    expect(error.exit).toBe(EXIT.configuration);
  });

  it("a DatasetDict without a split names its splits", async () => {
    const error = await refusal(join(FIXTURES, "dict"));
    expect(error.message).toContain("train, test");
    expect(error.hint).toBe("--split train");
  });

  it("a split that is not there names those that are", async () => {
    expect((await refusal(join(FIXTURES, "dict"), "dev")).message).toContain(
      'no split "dev" (it has train, test)',
    );
  });

  it("a split asked of a dataset without splits is refused", async () => {
    expect((await refusal(join(FIXTURES, "plain"), "train")).message).toContain("it has no splits");
    expect((await refusal(join(FIXTURES, "plain.parquet"), "train")).message).toContain("no splits");
  });

  it("a directory without state.json says what was looked for", async () => {
    const path = join(directory, "no-state");
    cpSync(join(FIXTURES, "plain"), path, { recursive: true });
    rmSync(join(path, "state.json"));
    expect((await refusal(path)).message).toContain("looked for state.json");
  });

  it("a missing data file is named", async () => {
    const path = join(directory, "missing-file");
    cpSync(join(FIXTURES, "sharded-3"), path, { recursive: true });
    rmSync(join(path, "data-00001-of-00003.arrow"));
    const error = await refusal(path);
    expect(error.subject).toContain("data-00001-of-00003.arrow");
    expect(error.message).toBe("no such file");
  });

  it("a path that is not there is named", async () => {
    const error = await refusal(join(directory, "nowhere"));
    expect(error.subject).toContain("nowhere");
    expect(error.exit).toBe(EXIT.configuration);
  });

  it("a state.json that leads out of its directory is refused", async () => {
    const path = join(directory, "leads-out");
    cpSync(join(FIXTURES, "plain"), path, { recursive: true });
    writeFileSync(
      join(path, "state.json"),
      JSON.stringify({ _data_files: [{ filename: "../plain/x.arrow" }] }),
    );
    expect((await refusal(path)).message).toContain("plain file names");
  });

  it("a directory of Parquet files of two splits needs one named", async () => {
    const path = join(directory, "hub");
    for (const name of ["train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"]) {
      cpSync(join(FIXTURES, "plain.parquet"), join(path, `${name}.parquet`));
    }
    expect((await refusal(path)).message).toContain("test, train");
    const sum = await sumUp(await openDataset(path, { split: "train" }));
    expect(sum.rows).toBe(2 * expected.plain!.rows);
  });

  it("a file of another kind says which are read", async () => {
    expect((await refusal(write("rows.csv", "a,b\n"))).message).toContain(".parquet, .jsonl");
  });
});

describe("files cut short", () => {
  const arrow = "data-00000-of-00001.arrow";
  const wholeBytes = readFileSync(join(FIXTURES, "one-row-batches", arrow)).length;

  it.each([0, 3, 8, 100, 400, 5_000, 77_777, wholeBytes - 9, wholeBytes - 8, wholeBytes - 1])(
    "an Arrow file cut to %i bytes is refused and named",
    async (bytes) => {
      const path = join(directory, `cut-${bytes}`);
      cpSync(join(FIXTURES, "one-row-batches"), path, { recursive: true });
      truncateSync(join(path, arrow), bytes);
      const error = await refusal(path);
      expect(error.subject).toContain(arrow);
      expect(error.exit).toBe(EXIT.integrity);
      expect(error.hint).toContain("cut or damaged");
    },
  );

  it("no cut of an Arrow file passes unnoticed, wherever it is", async () => {
    const path = join(directory, "cut-anywhere");
    cpSync(join(FIXTURES, "sharded-3"), path, { recursive: true });
    const file = join(path, "data-00002-of-00003.arrow");
    for (let bytes = readFileSync(file).length - 1; bytes > 0; bytes -= 397) {
      truncateSync(file, bytes);
      expect((await refusal(path)).exit).toBe(EXIT.integrity);
    }
  });

  it("no cut of a Parquet file passes unnoticed", async () => {
    const path = join(directory, "cut.parquet");
    cpSync(join(FIXTURES, "plain.parquet"), path);
    for (let bytes = readFileSync(path).length - 1; bytes > 0; bytes -= 611) {
      truncateSync(path, bytes);
      const error = await refusal(path);
      expect(error.exit).toBe(EXIT.integrity);
      expect(error.subject).toContain("cut.parquet");
    }
  });

  it("a Parquet file damaged in the middle of its pages is refused, or gives rows of the right number", async () => {
    const whole = readFileSync(join(FIXTURES, "plain.parquet"));
    const path = join(directory, "damaged.parquet");
    let refused = 0;
    for (let at = 4; at < whole.length - 3_000; at += 501) {
      const bytes = Buffer.from(whole);
      bytes[at]! ^= 0xff;
      writeFileSync(path, bytes);
      try {
        expect((await sumUp(await openDataset(path))).rows).toBe(40);
      } catch (error) {
        expect(error).toBeInstanceOf(RunError);
        refused += 1;
      }
    }
    expect(refused).toBeGreaterThan(0);
  });
});

describe("rows that are no rows, in JSON lines", () => {
  const good = '{"input_ids":[1,2],"loss_mask":[0,1]}\n';
  it.each([
    ["a broken line", `${good}\n{"input_ids":[1,2\n`, "line 3 (row 1): not JSON", EXIT.configuration],
    [
      "a negative id",
      `${good}{"input_ids":[1,-5],"loss_mask":[0,1]}\n`,
      "row 1: expected token ids",
      EXIT.configuration,
    ],
    ["an id over int32", `{"input_ids":[1,4294967296]}\n`, "found 4294967296 at place 1", EXIT.configuration],
    ["a fraction", `{"input_ids":[1,2.5]}\n`, "found 2.5 at place 1", EXIT.configuration],
    [
      "a string for ids",
      `{"input_ids":"1 2"}\n`,
      "expected input_ids to be a list of integers",
      EXIT.configuration,
    ],
    [
      "a short mask",
      `${good}{"input_ids":[1,2],"loss_mask":[1]}\n`,
      "row 1: expected a loss_mask of 2 values",
      EXIT.configuration,
    ],
    [
      "a mask of 2",
      `${good}{"input_ids":[1,2],"loss_mask":[1,2]}\n`,
      "row 1: expected loss_mask values of 0 or 1, found 2",
      EXIT.configuration,
    ],
    [
      "a mask that ends halfway",
      `${good}{"input_ids":[1,2]}\n`,
      "line 2 (row 1): expected loss_mask in all rows",
      EXIT.configuration,
    ],
    ["another column", `{"text":"a","label":1}\n`, "found the columns: text, label", EXIT.configuration],
    ["one large list", `[{"input_ids":[1]}]\n`, "found a list", EXIT.configuration],
    ["no object", `7\n`, "expected a JSON object, found number", EXIT.configuration],
  ])("%s is refused, with its place", async (name, content, message, exit) => {
    const error = await refusal(write(`${name.replaceAll(" ", "-")}.jsonl`, content));
    expect(error.message).toContain(message);
    expect(error.exit).toBe(exit);
  });

  it("empty rows, blank lines, a byte order mark, spaces and a last line without an end are borne", async () => {
    const path = write(
      "odd.jsonl",
      '\ufeff{ "input_ids" : [ ] }\r\n\n  \n{"a":{"b":"}]\\""},"input_ids":[ 7 ,8 ]}',
    );
    const sum = await sumUp(await openDataset(path));
    expect(sum).toMatchObject({ rows: 2, tokens: 2 });
  });

  it("booleans are a mask", async () => {
    const sum = await sumUp(
      await openDataset(write("bool.jsonl", '{"input_ids":[1,2],"loss_mask":[true,false]}\n')),
    );
    expect(sum).toMatchObject({ rows: 1, loss_tokens: 1 });
  });

  it("an abort ends the pass", async () => {
    const source = await openDataset(join(FIXTURES, "tokenised.jsonl"));
    const pass = async () => {
      for await (const _ of source.batches(AbortSignal.abort(new Error("enough"))));
    };
    await expect(pass()).rejects.toThrow("enough");
  });
});
