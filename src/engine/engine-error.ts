import { EXIT, RunError, type RunErrorFields } from "../base/errors.ts";
import type { EngineErrorKind } from "./protocol.ts";

/**
 * Why rows have no states: what the child says of itself (`EngineErrorKind`), and what only the parent sees:
 * it broke the protocol, hung, answered with states that are refused, could not be started, or we stopped it.
 */
export type FailureKind = EngineErrorKind | "protocol" | "hang" | "bad-states" | "start" | "stopped";

/** What a child may do wrong on the wire; each ends that child. */
export type ProtocolFault =
  | "not-json"
  | "not-a-message"
  | "line-too-long"
  | "pipe-closed"
  | "hello-missing"
  | "hello-twice"
  | "wrong-id"
  | "wrong-attempt"
  | "wrong-answer"
  | "answered-twice"
  | "missing-sample"
  | "unknown-row"
  | "row-twice"
  | "progress-backwards";

export type Retry = "smaller" | "no" | "restart";

export interface EngineErrorFields
  extends Pick<RunErrorFields, "subject" | "message" | "hint" | "safe" | "cause" | "exit" | "op" | "remedy"> {
  kind: FailureKind;
  fault?: ProtocolFault | null;
  rows?: readonly number[];
  retry?: Retry;
  errno?: string | null;
  unkillable?: boolean;
  /** The last lines of the engine's stderr, few enough for a message. They are added to `message`. */
  stderr?: readonly string[];
}

/**
 * An engine failed. Whoever gets one from a request may touch the request's file: the child has exited, or is
 * `unkillable`: no signal ends it, and it may hold its device for ever.
 * `rows` are the rows known to be at fault (empty: unknown, any of those it had).
 */
export class EngineError extends RunError {
  readonly kind: FailureKind;
  readonly fault: ProtocolFault | null;
  readonly rows: readonly number[];
  readonly retry: Retry;
  readonly errno: string | null;
  readonly unkillable: boolean;
  /** In one line, with the last of stderr's: for a table's cell, or a row. */
  readonly brief: string;
  readonly stderr: readonly string[];

  constructor(fields: EngineErrorFields) {
    const { stderr = [] } = fields;
    const lines = stderr.map((line) => `\n    ${line}`).join("");
    const message = `${fields.message}${lines && `; the end of the engine's stderr:${lines}`}`;
    super({ safe: "committed packs and the spool are untouched", exit: EXIT.engine, ...fields, message });
    this.name = "EngineError";
    this.brief = `${fields.message}${stderr.length > 0 ? `; its last words: ${stderr.at(-1)}` : ""}`;
    this.stderr = stderr;
    this.kind = fields.kind;
    this.fault = fields.fault ?? null;
    this.rows = fields.rows ?? [];
    this.retry = fields.retry ?? "restart";
    this.errno = fields.errno ?? null;
    this.unkillable = fields.unkillable ?? false;
  }
}

/** A breach of the protocol, thrown by what reads answers and caught where the child is ended for it. */
export class Fault extends Error {
  readonly fault: ProtocolFault;
  readonly rows: readonly number[];

  constructor(fault: ProtocolFault, message: string, rows: readonly number[] = []) {
    super(message);
    this.fault = fault;
    this.rows = rows;
  }
}
