import { createHash, randomBytes } from "node:crypto";
import { closeSync, fsyncSync, mkdirSync, openSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import type { Data, DataType, RecordBatchStreamWriter, Schema } from "apache-arrow";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { fsyncDirectory, writeAllSync } from "../base/publish.ts";
import { IDS, MASK } from "./rows.ts";

/** Loaded where a dataset is written and nowhere else: 8 MB that reading has no need of. */
type Arrow = typeof import("apache-arrow");

/** As datasets does: a new file begins at about 500 MB, a record batch holds at most 1,000 rows. */
const SHARD_BYTES = 500_000_000;
const BATCH_ROWS = 1_000;

export interface SavedDataset {
  /** Names within the directory, in row order. */
  files: string[];
  rows: number;
  tokens: number;
  lossTokens: number;
}

/**
 * Writes a directory that datasets.load_from_disk opens: columns input_ids list<int32>, loss_mask list<int64>,
 * seq_len int64. It appears whole, or not at all; `directory` must not exist. Throws a RunError (disk).
 */
export class SaveToDiskWriter {
  readonly #directory: string;
  readonly #temporary: string;
  readonly #arrow: Arrow;
  readonly #schema: Schema;
  readonly #fingerprint = createHash("sha256");
  #shard: Shard | null = null;
  #shards = 0;
  #isDone = false;
  rows = 0;
  tokens = 0;
  lossTokens = 0;

  private constructor(directory: string, arrow: Arrow) {
    this.#directory = resolve(directory);
    this.#temporary = `${this.#directory}.${randomBytes(6).toString("hex")}.tmp`;
    this.#arrow = arrow;
    this.#schema = schemaOf(arrow);
    guard(this.#directory, () => {
      mkdirSync(dirname(this.#temporary), { recursive: true });
      mkdirSync(this.#temporary);
    });
  }

  static async create(directory: string): Promise<SaveToDiskWriter> {
    return new SaveToDiskWriter(directory, await import("apache-arrow"));
  }

  /** Rows end to end, as in a RowBatch. */
  add({ ids, mask, lengths }: { ids: Int32Array; mask: Uint8Array; lengths: Int32Array }): void {
    guard(this.#directory, () => {
      for (let row = 0, token = 0; row < lengths.length; ) {
        const some = lengths.subarray(row, row + BATCH_ROWS);
        let tokens = 0;
        for (const length of some) tokens += length;
        this.#addBatch(ids.subarray(token, token + tokens), mask.subarray(token, token + tokens), some);
        row += some.length;
        token += tokens;
      }
    });
  }

  /** Publishes the directory; `extra` are further files for it, which load_from_disk does not look at. */
  finish(extra: Record<string, string> = {}): SavedDataset {
    return guard(this.#directory, () => {
      // A dataset without rows still has a file that holds its schema.
      if (this.#shards === 0) this.#openShard();
      this.#shard?.close();
      this.#shard = null;
      const files = Array.from({ length: this.#shards }, (_, i) => {
        const name = `data-${String(i).padStart(5, "0")}-of-${String(this.#shards).padStart(5, "0")}.arrow`;
        renameSync(join(this.#temporary, partName(i)), join(this.#temporary, name));
        return name;
      });
      const state = stateOf(files, this.#fingerprint.digest("hex").slice(0, 16));
      writeFileSync(join(this.#temporary, "dataset_info.json"), `${JSON.stringify(INFO, null, 2)}\n`);
      for (const [name, text] of Object.entries(extra)) writeFileSync(join(this.#temporary, name), text);
      writeFileSync(join(this.#temporary, "state.json"), `${JSON.stringify(state, null, 2)}\n`);
      fsyncDirectory(this.#temporary);
      renameSync(this.#temporary, this.#directory);
      fsyncDirectory(dirname(this.#directory));
      this.#isDone = true;
      return { files, rows: this.rows, tokens: this.tokens, lossTokens: this.lossTokens };
    });
  }

  /** Removes what was not published; harmless after finish. */
  discard(): void {
    if (this.#isDone) return;
    this.#isDone = true;
    this.#shard?.abandon();
    rmSync(this.#temporary, { recursive: true, force: true });
  }

  #addBatch(ids: Int32Array, mask: Uint8Array, lengths: Int32Array): void {
    if (lengths.length === 0) return;
    const { Field, Int32, Int64, List, makeData, RecordBatch, Struct } = this.#arrow;
    const rows = lengths.length;
    const valueOffsets = new Int32Array(rows + 1);
    for (let i = 0; i < rows; i += 1) valueOffsets[i + 1] = valueOffsets[i]! + lengths[i]!;
    const list = <T extends DataType>(child: Data<T>) =>
      makeData({
        type: new List(new Field("item", child.type, true)),
        length: rows,
        nullCount: 0,
        valueOffsets,
        child,
      });
    const int64 = (values: Uint8Array | Int32Array) =>
      makeData({ type: new Int64(), length: values.length, nullCount: 0, data: widen(values) });
    const children = [
      list(makeData({ type: new Int32(), length: ids.length, nullCount: 0, data: ids })),
      list(int64(mask)),
      int64(lengths),
    ];
    const type = new Struct(this.#schema.fields);
    const batch = new RecordBatch(this.#schema, makeData({ type, length: rows, nullCount: 0, children }));
    const shard = this.#shard ?? this.#openShard();
    shard.write(batch);
    this.#fingerprint.update(ids).update(mask).update(lengths);
    this.rows += rows;
    this.tokens += ids.length;
    for (const bit of mask) this.lossTokens += bit;
    if (shard.bytes >= SHARD_BYTES) {
      shard.close();
      this.#shard = null;
    }
  }

  #openShard(): Shard {
    const path = join(this.#temporary, partName(this.#shards));
    this.#shard = new Shard(path, this.#arrow, this.#schema);
    this.#shards += 1;
    return this.#shard;
  }
}

function partName(index: number): string {
  return `part-${index}`;
}

/** One Arrow stream file. */
class Shard {
  readonly #fd: number;
  readonly #writer: RecordBatchStreamWriter;
  bytes = 0;

  constructor(path: string, arrow: Arrow, schema: Schema) {
    this.#fd = openSync(path, "wx", 0o644);
    const take = (chunk: Uint8Array) => {
      writeAllSync(this.#fd, chunk, null);
      this.bytes += chunk.length;
    };
    // The writer's own queue holds what it wrote until somebody reads; this one holds nothing.
    class FileSink extends arrow.AsyncByteQueue {
      override write(chunk: ArrayBufferLike | ArrayBufferView | string): void {
        if (ArrayBuffer.isView(chunk)) take(new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength));
        else throw new Error("expected bytes of the Arrow writer");
      }
    }
    this.#writer = new arrow.RecordBatchStreamWriter({ autoDestroy: false });
    this.#writer.reset(new FileSink(), schema);
  }

  write(batch: Parameters<RecordBatchStreamWriter["write"]>[0]): void {
    this.#writer.write(batch);
  }

  /** With the end mark, durable. */
  close(): void {
    this.#writer.finish();
    fsyncSync(this.#fd);
    closeSync(this.#fd);
  }

  abandon(): void {
    closeSync(this.#fd);
  }
}

/** int64 from small non-negative values: their low words, by twos. */
function widen(values: Uint8Array | Int32Array): BigInt64Array {
  const words = new Int32Array(2 * values.length);
  for (let i = 0; i < values.length; i += 1) words[2 * i] = values[i]!;
  return new BigInt64Array(words.buffer);
}

const INT32 = { dtype: "int32", _type: "Value" };
const INT64 = { dtype: "int64", _type: "Value" };
const FEATURES = {
  [IDS]: { feature: INT32, _type: "List" },
  [MASK]: { feature: INT64, _type: "List" },
  seq_len: INT64,
};
const INFO = { citation: "", description: "", features: FEATURES, homepage: "", license: "" };

function schemaOf({ Field, Int32, Int64, List, Schema }: Arrow): Schema {
  const fields = [
    new Field(IDS, new List(new Field("item", new Int32(), true)), true),
    new Field(MASK, new List(new Field("item", new Int64(), true)), true),
    new Field("seq_len", new Int64(), true),
  ];
  return new Schema(fields, new Map([["huggingface", JSON.stringify({ info: { features: FEATURES } })]]));
}

/**
 * With the rows as torch tensors, as speculators' own prepare-data leaves them: its trainer compares ids by torch.equal
 * and fails on lists (0.9.0, train/data.py). A Python without torch cannot load_from_disk this; its datasets says so.
 */
function stateOf(files: string[], fingerprint: string): Record<string, unknown> {
  return {
    _data_files: files.map((filename) => ({ filename })),
    _fingerprint: fingerprint,
    _format_columns: null,
    _format_kwargs: {},
    _format_type: "torch",
    _output_all_columns: false,
    _split: null,
  };
}

function guard<T>(directory: string, act: () => T): T {
  try {
    return act();
  } catch (error) {
    const code = errnoOf(error);
    if (code === undefined || !/^E[A-Z0-9]+$/.test(code)) throw error;
    const isThere = code === "EEXIST" || code === "ENOTEMPTY" || code === "ENOTDIR";
    throw new RunError({
      op: "write dataset",
      subject: directory,
      message: isThere
        ? "it is there already"
        : code === "ENOSPC"
          ? "the disk is full"
          : `it cannot be written (${code})`,
      safe: "what was there is unchanged; the unfinished dataset is removed",
      hint: isThere ? "name another --output, or remove that one first" : "name a place that may be written",
      exit: isThere ? EXIT.usage : EXIT.disk,
      cause: error,
    });
  }
}
