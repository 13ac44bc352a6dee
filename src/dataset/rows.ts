import { EXIT, type ExitCode, RunError } from "../base/errors.ts";

/** Some consecutive rows of a dataset, checked: ids are 0..2^31-1, mask values 0 or 1, lengths agree. */
export interface RowBatch {
  /** [tokens], the rows' ids end to end. */
  ids: Int32Array;
  /** [rows], tokens of each row; 0 is passed on (the plan skips such rows). */
  lengths: Int32Array;
  /** [tokens], 0 or 1; null throughout where the dataset has no loss mask. */
  lossMask: Uint8Array | null;
}

export type SourceKind = "save-to-disk" | "parquet" | "jsonl";

/** What a file looked like when it was opened: a cache of anything derived from it is stale when this differs. */
export interface SourceFile {
  path: string;
  bytes: number;
  mtimeMs: number;
  inode: number;
}

/** Rows of token ids, wherever they come from. Each call of `batches` is one pass from the first row. */
export interface RowSource {
  kind: SourceKind;
  path: string;
  /** The data files, in row order. */
  files: SourceFile[];
  /** Batches own their arrays. Throws a RunError that names file and row; memory is bounded whatever the size. */
  batches(signal?: AbortSignal): AsyncIterable<RowBatch>;
}

/** Column names; every format uses the same. */
export const IDS = "input_ids";
export const MASK = "loss_mask";

/** A batch is handed on at about this many tokens or rows: large enough to amortise, small against any budget. */
const BATCH_TOKENS = 256 * 1024;
const BATCH_ROWS = 16 * 1024;

/** A fault of the dataset's: nothing was written anywhere because of it. */
export function badDataset(
  subject: string,
  message: string,
  more: { hint?: string; exit?: ExitCode; cause?: unknown } = {},
): RunError {
  return new RunError({
    op: "read dataset",
    subject,
    message,
    safe: "the dataset was only read",
    hint: more.hint ?? "mend it or make it again (forebay tokenize); --rows and --limit take a part of it",
    exit: more.exit ?? EXIT.configuration,
    cause: more.cause,
  });
}

/** "input_ids not among its columns: text, label". */
export function missingColumn(subject: string, found: readonly string[]): RunError {
  const columns = found.length > 0 ? found.join(", ") : "none";
  return badDataset(subject, `expected a column ${IDS} (lists of integers), found the columns: ${columns}`, {
    hint: "conversations are made into token ids by `forebay tokenize`",
  });
}

/** Collects rows into a RowBatch, checking what every format must check. Rows are numbered from 0. */
export class RowCollector {
  readonly #subject: string;
  /** Row number of the next row to be added. */
  #row: number;
  #ids = new Int32Array(BATCH_TOKENS);
  #mask: Uint8Array | null = null;
  #lengths = new Int32Array(1024);
  #tokens = 0;
  #rows = 0;

  constructor(subject: string, firstRow: number) {
    this.#subject = subject;
    this.#row = firstRow;
  }

  /** The number of the next row. */
  get row(): number {
    return this.#row;
  }

  get full(): boolean {
    return this.#tokens >= BATCH_TOKENS || this.#rows >= BATCH_ROWS;
  }

  get isEmpty(): boolean {
    return this.#rows === 0;
  }

  /**
   * Adds rows that stand end to end in `ids`; `mask` beside it with its own lengths.
   * Throws where an id is negative, a mask value is not 0 or 1, or a mask has another length than its row.
   */
  add(
    ids: Int32Array,
    lengths: Int32Array,
    mask: { values: Int32Array | Uint8Array; lengths: Int32Array } | null,
  ): void {
    this.#checkIds(ids, lengths);
    if (mask) this.#checkMaskLengths(lengths, mask.lengths);
    this.#reserve(ids.length, lengths.length, mask !== null);
    this.#ids.set(ids, this.#tokens);
    if (mask && this.#mask) this.#copyMask(mask.values, lengths, this.#mask);
    this.#lengths.set(lengths, this.#rows);
    this.#tokens += ids.length;
    this.#rows += lengths.length;
    this.#row += lengths.length;
  }

  /** What was collected since the last take. */
  take(): RowBatch {
    const batch = {
      ids: this.#ids.slice(0, this.#tokens),
      lengths: this.#lengths.slice(0, this.#rows),
      lossMask: this.#mask ? this.#mask.slice(0, this.#tokens) : null,
    };
    this.#tokens = 0;
    this.#rows = 0;
    // One huge row must not keep its room for the rest of the pass.
    if (this.#ids.length > 4 * BATCH_TOKENS) {
      this.#ids = new Int32Array(BATCH_TOKENS);
      if (this.#mask) this.#mask = new Uint8Array(BATCH_TOKENS);
    }
    return batch;
  }

  #checkIds(ids: Int32Array, lengths: Int32Array): void {
    let signs = 0;
    for (let i = 0; i < ids.length; i += 1) signs |= ids[i]!;
    if (signs >= 0) return;
    const at = ids.findIndex((id) => id < 0);
    throw badDataset(
      this.#subject,
      `row ${this.#row + rowAt(lengths, at)}: expected token ids of 0 to 2147483647, found ${ids[at]}`,
      { hint: "padding such as -100 belongs in no dataset of ids: drop it, or fix the row" },
    );
  }

  #checkMaskLengths(lengths: Int32Array, maskLengths: Int32Array): void {
    for (let i = 0; i < lengths.length; i += 1) {
      if (lengths[i] === maskLengths[i]) continue;
      throw badDataset(
        this.#subject,
        `row ${this.#row + i}: expected a loss_mask of ${lengths[i]} values, as many as input_ids, found ${maskLengths[i]}`,
      );
    }
  }

  #copyMask(values: Int32Array | Uint8Array, lengths: Int32Array, into: Uint8Array): void {
    let bits = 0;
    for (let i = 0, to = this.#tokens; i < values.length; i += 1, to += 1) {
      const value = values[i]!;
      bits |= value;
      into[to] = value;
    }
    if ((bits & ~1) === 0) return;
    const at = values.findIndex((value) => value !== 0 && value !== 1);
    throw badDataset(
      this.#subject,
      `row ${this.#row + rowAt(lengths, at)}: expected loss_mask values of 0 or 1, found ${values[at]}`,
    );
  }

  #reserve(tokens: number, rows: number, hasMask: boolean): void {
    const tokensNeeded = this.#tokens + tokens;
    if (tokensNeeded > this.#ids.length) {
      const ids = new Int32Array(Math.max(tokensNeeded, 2 * this.#ids.length));
      ids.set(this.#ids.subarray(0, this.#tokens));
      this.#ids = ids;
    }
    if (hasMask && (this.#mask === null || this.#mask.length < this.#ids.length)) {
      const mask = new Uint8Array(this.#ids.length);
      if (this.#mask) mask.set(this.#mask.subarray(0, this.#tokens));
      this.#mask = mask;
    }
    if (this.#rows + rows > this.#lengths.length) {
      const lengths = new Int32Array(Math.max(this.#rows + rows, 2 * this.#lengths.length));
      lengths.set(this.#lengths.subarray(0, this.#rows));
      this.#lengths = lengths;
    }
  }
}

/** Which of the rows of these lengths the value at `index` belongs to. */
export function rowAt(lengths: Int32Array, index: number): number {
  let end = 0;
  for (let row = 0; row < lengths.length; row += 1) {
    end += lengths[row]!;
    if (index < end) return row;
  }
  return lengths.length;
}
