import { plainText } from "../base/log.ts";
import { type FailureKind, Fault, type Retry } from "./engine-error.ts";
import type { ErrorAnswer, ExtractRequest, Progress, SampleStates, States } from "./protocol.ts";

/** One row that a living child could not do. */
export interface RowFailure {
  row: number;
  kind: FailureKind;
  errno: string | null;
  message: string;
  retry: Retry;
  /** Whether the child named this row, or failed it along with the whole request. */
  named: boolean;
}

/** A finished extract: each row of the request stands in exactly one of the two lists, in the request's order. */
export interface ExtractAnswer {
  samples: SampleStates[];
  failed: RowFailure[];
  seconds: { forward: number | null; write: number | null };
}

/** What one extract request has been answered so far. Each method throws a `Fault` on what cannot be an answer. */
export class PendingExtract {
  readonly tokensTotal: number;
  /** Of its longest sample. */
  readonly longestTokens: number;
  readonly #attempt: number;
  /** In the request's order. */
  readonly #rows: Set<number>;
  readonly #failed = new Map<number, RowFailure>();
  #tokensDone = 0;

  constructor(request: Omit<ExtractRequest, "type" | "id">) {
    const lengths = request.samples.map((sample) => sample.ids.length);
    this.tokensTotal = lengths.reduce((sum, tokens) => sum + tokens, 0);
    this.longestTokens = lengths.reduce((longest, tokens) => Math.max(longest, tokens), 0);
    this.#attempt = request.attempt;
    this.#rows = new Set(request.samples.map((sample) => sample.row));
  }

  get rows(): number[] {
    return [...this.#rows];
  }

  get tokensDone(): number {
    return this.#tokensDone;
  }

  /** Returns by how many tokens it got further; a child that hangs may repeat itself for ever. */
  progress(message: Progress): number {
    const { tokens_done } = message;
    if (tokens_done < this.#tokensDone || tokens_done > this.tokensTotal) {
      const range = `${this.#tokensDone}..${this.tokensTotal}`;
      throw new Fault("progress-backwards", `expected tokens_done within ${range}, found ${tokens_done}`);
    }
    const tokens = tokens_done - this.#tokensDone;
    this.#tokensDone = tokens_done;
    return tokens;
  }

  /** The last answer. */
  states(message: States): ExtractAnswer {
    if (message.attempt !== this.#attempt) {
      const found = `found attempt ${message.attempt}`;
      throw new Fault("wrong-attempt", `expected states of attempt ${this.#attempt}, ${found}`);
    }
    const byRow = new Map<number, SampleStates>();
    for (const sample of message.samples) {
      this.#expect(sample.row, byRow.has(sample.row));
      byRow.set(sample.row, sample);
    }
    const missing = this.rows.filter((row) => !byRow.has(row) && !this.#failed.has(row));
    if (missing.length > 0) {
      throw new Fault("missing-sample", `its answer lacks ${describeRows(missing)}`, missing);
    }
    this.#tokensDone = this.tokensTotal;
    return {
      samples: this.rows.flatMap((row) => byRow.get(row) ?? []),
      failed: this.#failedInOrder(),
      seconds: message.seconds,
    };
  }

  /** Returns the answer if that was the last of it, or null: `states` are to follow. */
  error(message: ErrorAnswer): ExtractAnswer | null {
    const { kind, errno, retry } = message;
    const isNamed = message.rows.length > 0;
    const rows = isNamed ? message.rows : this.rows.filter((row) => !this.#failed.has(row));
    const text = plainText(message.message, 500);
    for (const row of rows) {
      this.#expect(row, false);
      const named = isNamed || this.#rows.size === 1;
      this.#failed.set(row, { row, kind, errno, message: text, retry, named });
    }
    if (this.#failed.size < this.#rows.size) return null;
    return { samples: [], failed: this.#failedInOrder(), seconds: { forward: null, write: null } };
  }

  #expect(row: number, answered: boolean): void {
    if (!this.#rows.has(row)) {
      throw new Fault("unknown-row", `it answered for row ${row}, which was not asked for`);
    }
    if (answered || this.#failed.has(row))
      throw new Fault("row-twice", `it answered twice for row ${row}`, [row]);
  }

  #failedInOrder(): RowFailure[] {
    return this.rows.flatMap((row) => this.#failed.get(row) ?? []);
  }
}

function describeRows(rows: readonly number[]): string {
  const first = rows.slice(0, 5).join(", ");
  return rows.length === 1
    ? `row ${first}`
    : `${rows.length} rows (${first}${rows.length > 5 ? ", ..." : ""})`;
}
