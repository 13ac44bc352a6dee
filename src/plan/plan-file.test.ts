import { expect, test } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { buildHeader, parseHeader } from "../base/safetensors.ts";
import { makePlan, type Plan, type PlanOptions } from "./plan.ts";
import { decodePlan, encodePlan } from "./plan-file.ts";

const options: PlanOptions = {
  shape: { taps: 2, hidden: 16, hasLossMask: false, metadataBytes: 320 },
  packBytesMax: 2_048,
  order: "shuffled",
  seed: 5,
  maxTokens: 30,
  long: "skip",
  positions: 40,
};
const rows = { lengths: Uint32Array.of(0, 4, 31, 6, 7, 8, 50), firstRow: 100 };
const rowsHash = "ef".repeat(32);
const plan = makePlan(rows, options);

const encode = (changes: Partial<Plan>) => encodePlan({ ...plan, ...changes }, rowsHash);
const changed = (values: Uint32Array, at: number, value: number) => values.with(at, value);

function refusal(bytes: Uint8Array): RunError {
  try {
    decodePlan(bytes, "plan-x");
  } catch (error) {
    if (error instanceof RunError) return error;
    throw error;
  }
  throw new Error("expected a refusal");
}

test("the file is plain safetensors with its arrays and options", () => {
  const file = encode({});
  const header = parseHeader(file, "plan", file.length);
  expect(header.dataByte % 64).toBe(0);
  expect([...header.tensors.keys()]).toEqual([
    "rows",
    "tokens",
    "batch_start",
    "skipped_rows",
    "skipped_reasons",
  ]);
  expect(header.metadata.rows_hash).toBe(rowsHash);
});

test.each([
  ["a row twice", { rows: changed(plan.rows, 0, plan.rows[1]!) }, "twice"],
  ["a row that was skipped too", { rows: changed(plan.rows, 0, 100) }, "twice"],
  ["a row below its range", { rows: changed(plan.rows, 0, 99) }, "outside"],
  ["a row beyond its range", { rows: changed(plan.rows, 0, 107) }, "outside"],
  ["a sample without tokens", { tokens: changed(plan.tokens, 0, 0) }, "0 tokens"],
  ["a sample of 4 billion tokens", { tokens: changed(plan.tokens, 0, 2 ** 32 - 1) }, "cannot be in a plan"],
  ["fewer token counts than rows", { tokens: plan.tokens.subarray(1) }, "have 3 token counts"],
  ["batches that begin late", { batchStart: changed(plan.batchStart, 0, 1) }, "do not begin"],
  ["batches that end early", { batchStart: plan.batchStart.subarray(0, -1) }, "do not begin"],
  ["no batches at all", { batchStart: new Uint32Array(0) }, "do not begin"],
  ["a batch that runs backwards", { batchStart: Uint32Array.of(0, 3, 2, 4) }, "backwards"],
  ["skipped rows out of order", { skippedRows: plan.skippedRows.toReversed() }, "do not ascend"],
  ["a reason that is none", { skippedReasons: Uint8Array.of(0, 9, 1) }, "unknown reason 9"],
  ["a reason too few", { skippedReasons: Uint8Array.of(0, 1) }, "have 2 reasons"],
])("a plan with %s is refused", (_, changes, message) => {
  const error = refusal(encode(changes));
  expect(error.message).toContain(message);
  expect(error.exit).toBe(EXIT.integrity);
  expect(error.subject).toBe("plan-x");
});

test.each([
  ['"taps\\":2', '"taps\\":1.5', "taps"],
  ['"taps\\":2', '"taps\\":-2', "taps"],
  ['"hidden\\":16', '"hidden\\":15', "multiple of 4"],
  ['"order\\":\\"shuffled', '"order\\":\\"shuffle', "order"],
  ['{\\"taps', '{\\"extra\\":1,\\"taps', "extra"],
  ['{\\"taps', '[\\"taps', "not JSON"],
  ['"first_row":"100"', '"first_row":"-1"', "first_row"],
  ['"rows_hash":"ef', '"rows_hash":"EF', "names no rows file"],
  ["empty,over-max", "over-max,empty", "other skip reasons"],
  ["forebay-plan-1", "forebay-pack-1", "expected the format forebay-plan-1"],
])("a header with %s changed to %s is refused", (from, to, message) => {
  expect(refusal(edited(from, to)).message).toContain(message);
});

test("a plan of a newer version names the remedy, not damage", () => {
  const error = refusal(edited("forebay-plan-1", "forebay-plan-2"));
  expect(error.exit).toBe(EXIT.configuration);
  expect(error.hint).toContain("newer");
});

test("a cut plan, and a safetensors file that is no plan, are refused", () => {
  const file = encode({});
  expect(refusal(file.subarray(0, file.length - 4)).exit).toBe(EXIT.integrity);
  expect(refusal(file.subarray(0, 5)).exit).toBe(EXIT.integrity);
  expect(refusal(buildHeader([], {})).exit).toBe(EXIT.integrity);
});

test("a plan decodes from an odd place in memory", () => {
  const file = encode({});
  const odd = Buffer.alloc(file.length + 3).subarray(3);
  file.copy(odd);
  expect(decodePlan(odd, "plan")).toEqual(plan);
});

/** The file with its header's text changed, the header's length kept by its padding or made right. */
function edited(from: string, to: string): Buffer {
  const file = encode({});
  const { dataByte } = parseHeader(file, "plan");
  const text = file.subarray(8, dataByte).toString("latin1");
  expect(text).toContain(from);
  const header = Buffer.from(text.replace(from, to).trimEnd(), "latin1");
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(header.length));
  return Buffer.concat([length, header, file.subarray(dataByte)]);
}
