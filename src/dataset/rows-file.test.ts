import { createHash } from "node:crypto";
import { mkdtempSync, readdirSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { buildHeader, parseHeader } from "../base/safetensors.ts";
import { openDataset } from "./open.ts";
import type { RowBatch, RowSource } from "./rows.ts";
import { openRowsFile, verifyRowsFile } from "./rows-file.ts";
import { writeRowsFile } from "./rows-file-writer.ts";

const FIXTURES = new URL("../../fixtures/datasets/", import.meta.url).pathname;

let root: string;
let directory: string;
let count = 0;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), "rows-file-"));
});
beforeEach(() => {
  count += 1;
  directory = mkdtempSync(join(root, `${count}-`));
});
afterAll(() => {
  rmSync(root, { recursive: true, force: true });
});

interface Row {
  ids: number[];
  mask: number[];
}

function sourceOf(rows: Row[], options: { rowsPerBatch?: number; hasMask?: boolean } = {}): RowSource {
  const { rowsPerBatch = 3, hasMask = true } = options;
  return {
    kind: "jsonl",
    path: "memory",
    files: [],
    async *batches(): AsyncGenerator<RowBatch> {
      for (let i = 0; i < rows.length; i += rowsPerBatch) {
        const some = rows.slice(i, i + rowsPerBatch);
        yield {
          ids: Int32Array.from(some.flatMap((row) => row.ids)),
          lengths: Int32Array.from(some.map((row) => row.ids.length)),
          lossMask: hasMask ? Uint8Array.from(some.flatMap((row) => row.mask)) : null,
        };
      }
    },
  };
}

const rowArbitrary = fc
  .array(fc.tuple(fc.integer({ min: 0, max: 2 ** 31 - 1 }), fc.integer({ min: 0, max: 1 })), {
    maxLength: 12,
  })
  .map((pairs) => ({ ids: pairs.map(([id]) => id), mask: pairs.map(([, bit]) => bit) }));

describe("a rows file", () => {
  it("gives back any rows in any range, whatever the batches were", async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(rowArbitrary, { minLength: 1, maxLength: 30 }),
        fc.integer({ min: 1, max: 9 }),
        fc.nat({ max: 29 }),
        fc.nat({ max: 31 }),
        fc.boolean(),
        async (rows, rowsPerBatch, startRow, extra, hasMask) => {
          fc.pre(startRow < rows.length);
          const endRow = startRow + 1 + extra;
          const path = join(directory, "any.safetensors");
          const written = await writeRowsFile(sourceOf(rows, { rowsPerBatch, hasMask }), path, {
            startRow,
            endRow,
          });
          const kept = rows.slice(startRow, endRow);
          const ids = kept.flatMap((row) => row.ids);
          expect(written).toMatchObject({
            firstRow: startRow,
            rows: kept.length,
            tokens: ids.length,
            maxId: Math.max(-1, ...ids),
            minId: ids.length > 0 ? Math.min(...ids) : -1,
            longest: Math.max(...kept.map((row) => row.ids.length)),
            duplicates:
              kept.length - new Set(kept.map((row) => JSON.stringify(hasMask ? row : row.ids))).size,
          });
          expect(verifyRowsFile(path)).toEqual(written);
          const file = openRowsFile(path);
          expect([...file.lengths()]).toEqual(kept.map((row) => row.ids.length));
          kept.forEach((row, i) => {
            expect([...file.ids(startRow + i)]).toEqual(row.ids);
            expect(file.lossMask(startRow + i)).toEqual(hasMask ? Uint8Array.from(row.mask) : null);
          });
          expect(() => file.ids(startRow - 1)).toThrow("outside rows");
          expect(() => file.ids(startRow + kept.length)).toThrow("outside rows");
          file.close();
        },
      ),
      { numRuns: 60 },
    );
  });

  it("has the same hash whatever format the rows came from", async () => {
    const hashes = new Set<string>();
    for (const name of [
      "plain",
      "plain-int64",
      "large-list",
      "mask-uint8",
      "sharded-3",
      "plain.parquet",
      "tokenised.jsonl",
    ]) {
      const source = await openDataset(join(FIXTURES, name));
      hashes.add((await writeRowsFile(source, join(directory, "rows"))).hash);
    }
    expect(hashes.size).toBe(1);
  });

  it("has another hash when any id, mask value, row boundary or first row differs", async () => {
    const rows = [
      { ids: [1, 2], mask: [0, 1] },
      { ids: [3], mask: [1] },
    ];
    const variants: [Row[], { startRow?: number; hasMask?: boolean }][] = [
      [rows, {}],
      [rows, { hasMask: false }],
      [[{ ids: [1, 9], mask: [0, 1] }, rows[1]!], {}],
      [[{ ids: [1, 2], mask: [1, 1] }, rows[1]!], {}],
      [
        [
          { ids: [1], mask: [0] },
          { ids: [2, 3], mask: [1, 1] },
        ],
        {},
      ],
      [[{ ids: [0], mask: [0] }, ...rows], { startRow: 1 }],
    ];
    const hashes = new Set<string>();
    for (const [each, { startRow, hasMask }] of variants) {
      hashes.add(
        (await writeRowsFile(sourceOf(each, { hasMask }), join(directory, "rows"), { startRow })).hash,
      );
    }
    expect(hashes.size).toBe(variants.length);
  });

  it("is plain safetensors: torch's alignment, contiguous, exact", async () => {
    const path = join(directory, "rows");
    await writeRowsFile(sourceOf([{ ids: [5, 6, 7], mask: [0, 1, 1] }]), path);
    const bytes = readFileSync(path);
    const header = parseHeader(bytes, path, bytes.length);
    expect([...header.tensors.keys()]).toEqual(["input_ids", "padding", "offsets", "loss_mask"]);
    expect(header.tensors.get("offsets")!.startByte % 8).toBe(0);
    expect(header.dataByte % 64).toBe(0);
  });

  it("is the same bytes when it is made twice", async () => {
    const source = await openDataset(join(FIXTURES, "sharded-3"));
    const path = join(directory, "rows");
    await writeRowsFile(source, path);
    const first = readFileSync(path);
    await writeRowsFile(source, path);
    expect(readFileSync(path).equals(first)).toBe(true);
    expect(readdirSync(directory)).toEqual(["rows"]);
  });

  it("tells its progress", async () => {
    const seen: number[] = [];
    const rows = Array.from({ length: 10 }, () => ({ ids: [1], mask: [1] }));
    await writeRowsFile(sourceOf(rows), join(directory, "rows"), { onProgress: (p) => seen.push(p.rows) });
    expect(seen).toEqual([3, 6, 9, 10]);
  });
});

describe("when it cannot be made", () => {
  async function refusal(source: RowSource, path: string, options = {}): Promise<RunError> {
    const error = await writeRowsFile(source, path, options).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(RunError);
    return error as RunError;
  }

  it("nothing is left behind by a dataset that breaks off in the middle", async () => {
    const path = join(directory, "broken.jsonl");
    writeFileSync(path, '{"input_ids":[1]}\n{"input_ids":[-1]}\n');
    const error = await refusal(await openDataset(path), join(directory, "rows"));
    expect(error.message).toContain("row 1");
    expect(error.safe).toContain("only read");
    expect(readdirSync(directory)).toEqual(["broken.jsonl"]);
  });

  it("nothing is left behind by an abort", async () => {
    const controller = new AbortController();
    const source = await openDataset(join(FIXTURES, "sharded-3"));
    controller.abort(new Error("enough"));
    await expect(
      writeRowsFile(source, join(directory, "rows"), { signal: controller.signal }),
    ).rejects.toThrow("enough");
    expect(readdirSync(directory)).toEqual([]);
  });

  it("an empty dataset and a range without rows are refused", async () => {
    const path = join(directory, "empty.jsonl");
    writeFileSync(path, "\n");
    const none = await refusal(await openDataset(path), join(directory, "rows"));
    expect(none.message).toBe("expected rows, found none");
    expect(none.exit).toBe(EXIT.configuration);
    const range = await refusal(sourceOf([{ ids: [1], mask: [1] }]), join(directory, "rows"), {
      startRow: 5,
    });
    expect(range.message).toContain("the dataset has 1");
  });

  it("a place that is not there is a fault of the disk's", async () => {
    const error = await refusal(sourceOf([{ ids: [1], mask: [1] }]), join(directory, "nowhere", "rows"));
    expect(error.exit).toBe(EXIT.disk);
    expect(error.subject).toContain("nowhere");
  });

  it("a directory that may not be written is a fault of the disk's", async () => {
    // Not even root may make a file there; in a container it is mounted read-only.
    const error = await refusal(sourceOf([{ ids: [1], mask: [1] }]), "/sys/forebay-rows");
    expect(error.exit).toBe(EXIT.disk);
    expect(error.message).toMatch(/EACCES|EROFS/);
  });
});

describe("a rows file that lies", () => {
  const metadata = (changes: Record<string, string> = {}) => ({
    format: "forebay-rows-1",
    first_row: "0",
    rows: "2",
    tokens: "4",
    max_id: "4",
    min_id: "1",
    longest: "3",
    duplicates: "0",
    hash: "0".repeat(64),
    source: "jsonl",
    ...changes,
  });

  function lie(changes: {
    metadata?: Record<string, string>;
    offsets?: bigint[];
    idDtype?: "I32" | "I64";
    ids?: number;
  }) {
    const { offsets = [0n, 1n, 4n], idDtype = "I32", ids = 4 } = changes;
    const path = join(directory, "lie");
    const header = buildHeader(
      [
        { name: "input_ids", dtype: idDtype, shape: [ids] },
        { name: "offsets", dtype: "I64", shape: [offsets.length] },
      ],
      metadata(changes.metadata),
    );
    const idBytes = Buffer.alloc(ids * (idDtype === "I32" ? 4 : 8));
    writeFileSync(path, Buffer.concat([header, idBytes, Buffer.from(BigInt64Array.from(offsets).buffer)]));
    return path;
  }

  it("is opened where it tells the truth", () => {
    const file = openRowsFile(lie({}));
    expect([...file.lengths()]).toEqual([1, 3]);
    file.close();
  });

  it.each<[string, Parameters<typeof lie>[0], string]>([
    ["descending offsets", { offsets: [0n, 5n, 4n] }, "offset 1 is 5"],
    ["offsets that go back", { offsets: [0n, 3n, 2n] }, "offset 2 is 2"],
    ["offsets that begin after 0", { offsets: [1n, 1n, 4n] }, "offset 0 is 1"],
    ["negative offsets", { offsets: [0n, -1n, 4n] }, "offset 1"],
    ["huge offsets", { offsets: [0n, 2n ** 62n, 4n] }, "offset 1"],
    ["offsets that end early", { offsets: [0n, 1n, 3n] }, "end at 3"],
    ["another count of rows", { metadata: { rows: "9" } }, "expected offsets to be I64 [10]"],
    ["a huge count of rows", { metadata: { rows: "9007199254740991" } }, "expected offsets"],
    ["a count that is no number", { metadata: { rows: "two" } }, "as rows, found two"],
    ["a negative count", { metadata: { tokens: "-4" } }, "as tokens, found -4"],
    ["another format", { metadata: { format: "forebay-rows-9" } }, "found forebay-rows-9"],
    ["no hash", { metadata: { hash: "abc" } }, "expected a sha256"],
    ["an unknown source", { metadata: { source: "csv" } }, "none of save-to-disk"],
    ["ids of another dtype", { idDtype: "I64" }, "expected input_ids to be I32 [4], found I64"],
    ["ids of another length", { ids: 6 }, "expected input_ids to be I32 [4]"],
  ])("%s are refused", (_, changes, message) => {
    const path = lie(changes);
    let caught: unknown;
    try {
      openRowsFile(path).close();
    } catch (error) {
      caught = error;
    }
    expect(caught).toBeInstanceOf(RunError);
    expect((caught as RunError).message).toContain(message);
    expect((caught as RunError).exit).toBe(EXIT.integrity);
  });

  it("is refused when it was cut, wherever", async () => {
    const path = join(directory, "rows");
    await writeRowsFile(await openDataset(join(FIXTURES, "plain")), path);
    for (let bytes = readFileSync(path).length - 1; bytes >= 0; bytes -= 977) {
      truncateSync(path, bytes);
      expect(() => openRowsFile(path)).toThrow(RunError);
    }
  });

  it("is found by its hash when one byte of an id was changed", async () => {
    const path = join(directory, "rows");
    await writeRowsFile(await openDataset(join(FIXTURES, "plain")), path);
    const bytes = readFileSync(path);
    bytes[5_000]! ^= 1;
    writeFileSync(path, bytes);
    openRowsFile(path).close();
    expect(() => verifyRowsFile(path)).toThrow("expected content of hash");
  });

  it("a file that is no safetensors or is not there is named", () => {
    const path = join(directory, "text");
    writeFileSync(path, "not a rows file, but long enough to hold a length");
    expect(() => openRowsFile(path)).toThrow(RunError);
    expect(() => openRowsFile(join(directory, "none"))).toThrow(RunError);
  });
});

it("the hash is what docs/format.md says, computed by hand", async () => {
  const path = join(directory, "rows");
  const { hash } = await writeRowsFile(sourceOf([{ ids: [1, 2], mask: [0, 1] }]), path);
  const hex = (bytes: NodeJS.ArrayBufferView) => createHash("sha256").update(bytes).digest("hex");
  const ids = hex(Int32Array.of(1, 2));
  const mask = hex(Uint8Array.of(0, 1));
  const offsets = hex(BigInt64Array.of(0n, 2n));
  const text = `forebay-rows-1\n0\n${ids}\n${mask}\n${offsets}\n`;
  expect(hash).toBe(createHash("sha256").update(text).digest("hex"));
});
