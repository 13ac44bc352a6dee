import { createHash } from "node:crypto";
import { z } from "zod";
import { EXIT, RunError } from "../base/errors.ts";
import { buildHeader, type Dtype, parseHeader, type SafetensorsHeader } from "../base/safetensors.ts";
import { SAMPLE_BYTES_MAX, sampleBytes } from "../pack/layout.ts";
import { type Plan, type PlanOptions, SKIP_REASONS } from "./plan.ts";

const PLAN_FORMAT = "forebay-plan-1";

/**
 * The plan as a safetensors file. `rowsHash` is the content hash of the rows file that it was made of.
 * The same plan gives the same bytes on every machine: their sha256 is part of the run's identity.
 */
export function encodePlan(plan: Plan, rowsHash: string): Buffer {
  const metadata = {
    format: PLAN_FORMAT,
    rows_hash: rowsHash,
    first_row: String(firstRowOf(plan)),
    skip_reasons: SKIP_REASONS.join(","),
    options: JSON.stringify(optionsToFile(plan.options)),
  };
  const arrays = TENSORS.map(({ name, dtype, field }) => ({ name, dtype, values: plan[field] }));
  const header = buildHeader(
    arrays.map(({ name, dtype, values }) => ({ name, dtype, shape: [values.length] })),
    metadata,
  );
  return Buffer.concat([header, ...arrays.map(({ values }) => bytesOf(values))]);
}

/** sha256 of the plan file's bytes, 64 hex digits. */
export function planHashOf(file: Uint8Array): string {
  return createHash("sha256").update(file).digest("hex");
}

/**
 * A plan file, read as hostile input: what it says is checked before it is used (each row of its range exactly
 * once, batches that neither overlap nor are empty, samples of a size that can be), so that no later part need
 * doubt it. Throws integrity, or configuration for a file of a newer version.
 */
export function decodePlan(bytes: Uint8Array, subject: string): Plan {
  const header = parseHeader(bytes, subject, bytes.length);
  const { metadata } = header;
  refuseOtherFormat(metadata.format, subject);
  if (!/^[0-9a-f]{64}$/.test(metadata.rows_hash ?? "")) throw bad(subject, "it names no rows file");
  if (!/^(0|[1-9]\d{0,9})$/.test(metadata.first_row ?? ""))
    throw bad(subject, "first_row is no whole number");
  if (metadata.skip_reasons !== SKIP_REASONS.join(",")) throw bad(subject, "it has other skip reasons");
  if (header.tensors.size !== TENSORS.length) {
    throw bad(subject, `expected ${TENSORS.length} tensors, found ${header.tensors.size}`);
  }
  const words = (name: string) => asUint32(tensorBytes(header, bytes, name, "U32", subject));
  const plan: Plan = {
    options: optionsFromFile(metadata.options ?? "", subject),
    rows: words("rows"),
    tokens: words("tokens"),
    batchStart: words("batch_start"),
    skippedRows: words("skipped_rows"),
    skippedReasons: new Uint8Array(tensorBytes(header, bytes, "skipped_reasons", "U8", subject)),
  };
  checkPlan(plan, Number(metadata.first_row), subject);
  return plan;
}

const TENSORS = [
  { name: "rows", dtype: "U32", field: "rows" },
  { name: "tokens", dtype: "U32", field: "tokens" },
  { name: "batch_start", dtype: "U32", field: "batchStart" },
  { name: "skipped_rows", dtype: "U32", field: "skippedRows" },
  { name: "skipped_reasons", dtype: "U8", field: "skippedReasons" },
] as const satisfies { name: string; dtype: Dtype; field: keyof Plan }[];

const positive = z.number().int().positive();

const OptionsFile = z.strictObject({
  taps: positive,
  hidden: positive,
  loss_mask: z.boolean(),
  metadata_bytes: z.number().int().nonnegative().max(1_000_000),
  pack_bytes_max: positive,
  order: z.enum(["shuffled", "longest-first"]),
  seed: z.number().int().nonnegative(),
  max_tokens: positive.nullable(),
  long: z.enum(["skip", "truncate"]),
  positions: positive.nullable(),
});

/** In one fixed order of keys: the file's bytes are hashed. */
function optionsToFile(options: PlanOptions): z.infer<typeof OptionsFile> {
  return {
    taps: options.shape.taps,
    hidden: options.shape.hidden,
    loss_mask: options.shape.hasLossMask,
    metadata_bytes: options.shape.metadataBytes,
    pack_bytes_max: options.packBytesMax,
    order: options.order,
    seed: options.seed,
    max_tokens: options.maxTokens,
    long: options.long,
    positions: options.positions,
  };
}

function optionsFromFile(text: string, subject: string): PlanOptions {
  let json: unknown;
  try {
    json = JSON.parse(text);
  } catch (cause) {
    throw bad(subject, "its options are not JSON", cause);
  }
  const parsed = OptionsFile.safeParse(json);
  if (!parsed.success) throw bad(subject, `its options: ${z.prettifyError(parsed.error)}`);
  const file = parsed.data;
  if ((file.taps * file.hidden) % 4 !== 0) throw bad(subject, "taps x hidden is no multiple of 4");
  return {
    shape: {
      taps: file.taps,
      hidden: file.hidden,
      hasLossMask: file.loss_mask,
      metadataBytes: file.metadata_bytes,
    },
    packBytesMax: file.pack_bytes_max,
    order: file.order,
    seed: file.seed,
    maxTokens: file.max_tokens,
    long: file.long,
    positions: file.positions,
  };
}

function checkPlan(plan: Plan, firstRow: number, subject: string): void {
  const { rows, tokens, batchStart, skippedRows, skippedReasons, options } = plan;
  if (tokens.length !== rows.length)
    throw bad(subject, `${rows.length} rows have ${tokens.length} token counts`);
  if (skippedReasons.length !== skippedRows.length) {
    throw bad(subject, `${skippedRows.length} skipped rows have ${skippedReasons.length} reasons`);
  }
  if (batchStart[0] !== 0 || batchStart.at(-1) !== rows.length) {
    throw bad(subject, "its batches do not begin at the first row and end at the last");
  }
  for (let b = 1; b < batchStart.length; b += 1) {
    if (batchStart[b]! <= batchStart[b - 1]!) throw bad(subject, `batch ${b - 1} is empty or runs backwards`);
  }
  for (const n of tokens) {
    if (n === 0 || sampleBytes(n, options.shape) > SAMPLE_BYTES_MAX) {
      throw bad(subject, `a sample of ${n} tokens cannot be in a plan`);
    }
  }
  for (const code of skippedReasons) {
    if (code >= SKIP_REASONS.length) throw bad(subject, `a row is skipped for the unknown reason ${code}`);
  }
  for (let i = 1; i < skippedRows.length; i += 1) {
    if (skippedRows[i]! <= skippedRows[i - 1]!) throw bad(subject, "its skipped rows do not ascend");
  }
  const seen = new Uint8Array(rows.length + skippedRows.length);
  for (const list of [rows, skippedRows]) {
    for (const row of list) {
      const at = row - firstRow;
      if (at < 0 || at >= seen.length) {
        throw bad(subject, `row ${row} lies outside its rows ${firstRow}-${firstRow + seen.length - 1}`);
      }
      if (seen[at] === 1) throw bad(subject, `row ${row} stands in it twice`);
      seen[at] = 1;
    }
  }
}

/** A plan speaks of one range of rows; this is its first. */
function firstRowOf(plan: Plan): number {
  let first = plan.skippedRows[0] ?? Number.POSITIVE_INFINITY;
  for (const row of plan.rows) if (row < first) first = row;
  return first;
}

function refuseOtherFormat(format: string | undefined, subject: string): void {
  if (format === PLAN_FORMAT) return;
  const version = Number(/^forebay-plan-(\d+)$/.exec(format ?? "")?.[1]);
  if (!(version > 1)) throw bad(subject, `expected the format ${PLAN_FORMAT}, found ${format?.slice(0, 64)}`);
  throw new RunError({
    op: "read plan",
    subject,
    message: `this plan was made by a newer Forebay (${format}), this one reads ${PLAN_FORMAT}`,
    safe: "nothing was changed",
    hint: "install the newer Forebay: npm install forebay@latest",
    exit: EXIT.configuration,
  });
}

function tensorBytes(
  header: SafetensorsHeader,
  bytes: Uint8Array,
  name: string,
  dtype: Dtype,
  subject: string,
): Uint8Array {
  const entry = header.tensors.get(name);
  if (entry?.dtype !== dtype || entry.shape.length !== 1) {
    throw bad(subject, `expected the tensor "${name}" as a list of ${dtype}`);
  }
  return bytes.subarray(entry.startByte, entry.endByte);
}

/** A view where the place in memory allows it, else a copy. */
function asUint32(bytes: Uint8Array): Uint32Array {
  const aligned = bytes.byteOffset % 4 === 0 ? bytes : new Uint8Array(bytes);
  return new Uint32Array(aligned.buffer, aligned.byteOffset, aligned.length / 4);
}

/** Little-endian machines only, as all that Node 20 runs on but s390x. */
function bytesOf(values: Uint32Array | Uint8Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

function bad(subject: string, message: string, cause?: unknown): RunError {
  return new RunError({
    op: "read plan",
    subject,
    message,
    safe: "nothing was changed",
    hint: "the plan is damaged or not Forebay's: without it a run cannot go on; restore the object",
    exit: EXIT.integrity,
    cause,
  });
}
