import { closeSync, fstatSync, openSync, writeSync } from "node:fs";
import { crc32c } from "../../base/checksum.ts";
import { describeError, errnoOf } from "../../base/errors.ts";
import { readExactlySync } from "../../base/read-exactly.ts";
import {
  headerLength,
  parseHeader,
  type SafetensorsHeader,
  type TensorEntry,
} from "../../base/safetensors.ts";
import type { SampleStates } from "../protocol.ts";
import { bf16OfFloat16, bf16OfFloat32 } from "./bf16.ts";
import { fileTrouble, refused, type VllmError } from "./failure.ts";
import { StatesStats } from "./states-stats.ts";

/**
 * The file that vLLM's hidden-states connector writes for one prompt: safetensors with `token_ids` I64 [tokens] and
 * `hidden_states` [tokens, layers, hidden] in the model's dtype. Source: vLLM,
 * distributed/kv_transfer/kv_connector/v1/example_hidden_states_connector.py, 0.22 to 0.32.
 */

/** Whether a file can be read: it is written front to back, so it is whole once it has the size its header tells. */
export type FileState =
  | { kind: "absent" }
  /** `expectedBytes` is null as long as the header itself is not all there. */
  | { kind: "short"; bytes: number; expectedBytes: number | null }
  /** Not what the connector writes, or not yet: some filesystems show a file's size before its bytes. */
  | { kind: "garbled"; reason: string }
  | { kind: "whole"; bytes: number };

/** What one file is held against, and where its states go. */
export interface CopyJob {
  path: string;
  /** The prompt. */
  ids: Int32Array;
  taps: number;
  hidden: number;
  /** Null: the states are only looked at. */
  file: string | null;
  offset: number;
}

export interface CopyResult {
  sample: Omit<SampleStates, "row">;
  /** Of the states in the connector's file: "BF16", "F16" or "F32". */
  dtype: string;
  seconds: number;
}

/** A real header has 150 bytes. */
const HEADER_BYTES_MAX = 1 << 20;
/** Of states, read, counted, checked and written at once: from the first to the last they stay in the cache. */
const PIECE_BYTES = 2 ** 20;
/** More than any model has blocks. */
const TAPS_MAX = 1_024;

/** Throws a VllmError where it cannot be read. */
export function fileState(path: string): FileState {
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return { kind: "absent" };
    throw unreadable(path, error);
  }
  try {
    const bytes = fstatSync(fd).size;
    const header = readHeader(fd, path, bytes);
    if (header && header.fileBytes < bytes) {
      return { kind: "garbled", reason: `it has ${bytes} bytes, its header describes ${header.fileBytes}` };
    }
    return header?.fileBytes === bytes
      ? { kind: "whole", bytes }
      : { kind: "short", bytes, expectedBytes: header?.fileBytes ?? null };
  } catch (error) {
    return { kind: "garbled", reason: describeError(error) };
  } finally {
    closeSync(fd);
  }
}

/** Copies states out of connector files, one after another. Holds the memory for it. */
export class StatesCopier {
  readonly #nowMs: () => number;
  #stats = new StatesStats(PIECE_BYTES, TAPS_MAX);

  /** `nowMs` is asked for how long it took. */
  constructor(nowMs: () => number) {
    this.#nowMs = nowMs;
  }

  /**
   * Checks a whole connector file against its prompt, and copies its states as bf16 to their place.
   * Throws a VllmError where ids, layers or width are others than asked for, or the file is cut; the system error of
   * a write that fails.
   */
  copy(job: CopyJob): CopyResult {
    const startMs = this.#nowMs();
    const from = openConnectorFile(job.path);
    try {
      const header = readHeader(from, job.path, fstatSync(from).size);
      if (!header) throw fileTrouble(`${job.path} was cut after it had been whole`);
      const { states, ids } = needTensors(header, job);
      const told = readIds(from, ids, job);
      const into = job.file === null ? null : openSync(job.file, "r+");
      try {
        const copied = this.#copyStates(from, states, into, job);
        const sample = { tokens: job.ids.length, ids_crc32c: crc32c(bytesOf(told)), ...copied };
        return { sample, dtype: states.dtype, seconds: (this.#nowMs() - startMs) / 1000 };
      } finally {
        if (into !== null) closeSync(into);
      }
    } finally {
      closeSync(from);
    }
  }

  #copyStates(from: number, states: TensorEntry, into: number | null, job: CopyJob) {
    const { taps, hidden, ids } = job;
    const tokenValues = taps * hidden;
    if (this.#stats.pieceValues < tokenValues) this.#stats = new StatesStats(2 * tokenValues, TAPS_MAX);
    const stats = this.#stats;
    const pieceTokens = Math.floor(stats.pieceValues / tokenValues);
    stats.begin(taps, hidden);
    let crc = 0;
    let written = 0;
    for (let token = 0; token < ids.length; token += pieceTokens) {
      const tokens = Math.min(pieceTokens, ids.length - token);
      const piece = stats.piece(tokens * tokenValues);
      readBf16(piece, { from, states, value: token * tokenValues, path: job.path });
      stats.add(tokens);
      const bytes = bytesOf(piece);
      crc = crc32c(bytes, crc);
      if (into !== null) writeFully(into, bytes, job.offset + written);
      written += bytes.length;
    }
    return { bytes: written, crc32c: crc, ...stats.result() };
  }
}

function openConnectorFile(path: string): number {
  try {
    return openSync(path, "r");
  } catch (error) {
    throw unreadable(path, error);
  }
}

/** The server's folder, not the spool's disk: so without the errno. */
function unreadable(path: string, error: unknown): VllmError {
  return fileTrouble(
    `${path} cannot be read: ${describeError(error)}; does Forebay run as another user than vLLM?`,
  );
}

/** Numbers from `value` on, as bf16. */
function readBf16(
  into: Uint16Array,
  { from, states, value, path }: { from: number; states: TensorEntry; value: number; path: string },
): void {
  const { dtype, startByte } = states;
  if (dtype === "BF16") {
    readFully(from, bytesOf(into), startByte + value * 2, path);
  } else if (dtype === "F16") {
    readFully(from, bytesOf(into), startByte + value * 2, path);
    bf16OfFloat16(into, into);
  } else {
    const words = new Uint32Array(into.length);
    readFully(from, bytesOf(words), startByte + value * 4, path);
    bf16OfFloat32(words, into);
  }
}

/** Null as long as it is not all there. */
function readHeader(fd: number, path: string, fileBytes: number): SafetensorsHeader | null {
  if (fileBytes < 8) return null;
  const first8 = new Uint8Array(8);
  readFully(fd, first8, 0, path);
  const length = headerLength(first8, path);
  if (length > HEADER_BYTES_MAX)
    throw refused(`${path}: expected a small header, found one of ${length} bytes`);
  if (8 + length > fileBytes) return null;
  const header = new Uint8Array(8 + length);
  readFully(fd, header, 0, path);
  return parseHeader(header, path);
}

function needTensors(header: SafetensorsHeader, job: CopyJob): { states: TensorEntry; ids: TensorEntry } {
  const states = header.tensors.get("hidden_states");
  const ids = header.tensors.get("token_ids");
  if (!states || !ids) {
    const names = [...header.tensors.keys()].join(", ");
    throw refused(`${job.path}: expected the tensors hidden_states and token_ids, found ${names || "none"}`);
  }
  if (!["BF16", "F16", "F32"].includes(states.dtype)) {
    throw refused(
      `expected states in BF16, F16 or F32, found ${states.dtype}: start vLLM with --dtype bfloat16`,
    );
  }
  const [tokens, layers, hidden] = states.shape;
  if (states.shape.length !== 3)
    throw refused(`expected states [tokens, layers, hidden], found [${states.shape}]`);
  if (hidden !== job.hidden) {
    throw refused(`expected hidden ${job.hidden}, found ${hidden}: the server runs another model`);
  }
  if (layers !== job.taps) {
    throw refused(
      `expected states of ${job.taps} taps, found ${layers}: the server was started with other eagle_aux_hidden_state_layer_ids`,
    );
  }
  if (tokens !== job.ids.length) {
    throw refused(
      `expected states of ${job.ids.length} tokens, found ${tokens}: start vLLM with --no-enable-prefix-caching and --no-enable-chunked-prefill`,
    );
  }
  return { states, ids };
}

/** The ids that went through the model, as the file tells; throws unless they are the prompt's. */
function readIds(fd: number, entry: TensorEntry, { ids, path }: CopyJob): Int32Array {
  if (entry.dtype !== "I64" || entry.shape.length !== 1 || entry.shape[0] !== ids.length) {
    throw refused(`expected token_ids I64 [${ids.length}], found ${entry.dtype} [${entry.shape}]`);
  }
  const told = new BigInt64Array(ids.length);
  readFully(fd, bytesOf(told), entry.startByte, path);
  const at = ids.findIndex((id, i) => told[i] !== BigInt(id));
  if (at >= 0) {
    throw refused(
      `the file's states are of other tokens: expected id ${ids[at]} at ${at}, found ${told[at]}; does another server write into the same folder?`,
    );
  }
  return Int32Array.from(told, Number);
}

function readFully(fd: number, into: Uint8Array, startByte: number, path: string): void {
  const cut = (endByte: number) =>
    fileTrouble(`${path} ends at byte ${endByte}, within what its header describes`);
  try {
    readExactlySync(fd, into, { startByte, path, cut });
  } catch (error) {
    throw errnoOf(error) === undefined ? error : unreadable(path, error);
  }
}

function writeFully(fd: number, bytes: Uint8Array, startByte: number): void {
  for (let written = 0; written < bytes.byteLength; ) {
    written += writeSync(fd, bytes, written, bytes.byteLength - written, startByte + written);
  }
}

function bytesOf(view: ArrayBufferView): Uint8Array {
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}
