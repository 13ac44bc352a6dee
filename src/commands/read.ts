import { resolve } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import { publishReplacing } from "../base/publish.ts";
import { buildHeader, type TensorSpec } from "../base/safetensors.ts";
import { type ReadSample, readSample } from "../run/sample.ts";
import { loadStoredRun, type StoredRun } from "../run/stored-run.ts";
import { printJson, printLine, say } from "./io.ts";
import { withStore } from "./open-store.ts";
import { runPlace } from "./run-place.ts";
import type { VerbSpec } from "./verb.ts";

/** How many ids and values a person is shown of each. */
const SHOWN = 8;

export const read: VerbSpec = {
  name: "read",
  settings: "read",
  summary: "one sample: print it, or save it as a safetensors file",
  arguments: [
    ["<address>", "the run"],
    ["<row>", "row of the dataset, counted from 0"],
  ],
  options: [
    ["--check", "also read the pack's header and verify the sample's CRC"],
    ["--output <path>", "save token_ids, loss_mask and hidden_states to this file"],
  ],
  examples: [
    "forebay read file:demo-run/demo 7",
    "forebay read s3://bucket/prefix/name 12345 --check --output row.safetensors",
  ],
  async run(call) {
    const { io, args, options, json } = call;
    const row = parseRow(args[1]!);
    const place = runPlace(call, args[0]);
    const { run, found } = await withStore(place.spec, io, async (store) => {
      const run = await loadStoredRun(store, { cacheDirectory: null, signal: io.signal });
      return {
        run,
        found: await readSample(store, run, row, { check: options.check === true, signal: io.signal }),
      };
    });
    if (found.kind === "skipped") {
      if (json) printJson(io, { row, skipped: found.reason, when: found.when });
      else printLine(io, `row ${row} was skipped by the ${found.when}: ${found.reason}`);
      return EXIT.doneWithSkips;
    }
    if (typeof options.output === "string") {
      const path = resolve(io.directory, options.output);
      publishReplacing(path, sampleFile(found, run));
      say(io, `wrote ${path}`);
    }
    if (json) printJson(io, sampleJson(found, run));
    else for (const line of sampleLines(found, run)) printLine(io, line);
    return EXIT.done;
  },
};

type Found = Extract<ReadSample, { kind: "sample" }>;

function parseRow(text: string): number {
  if (/^\d{1,10}$/.test(text)) return Number(text);
  throw new RunError({
    op: "read arguments",
    subject: "ROW",
    message: `expected a row number such as 0, found "${text}"`,
    hint: "forebay read ADDRESS 0",
    exit: EXIT.usage,
  });
}

/** The sample as a safetensors file of its own: the names and dtypes that packs have, without the row. */
function sampleFile(found: Found, run: StoredRun): Uint8Array[] {
  const { ids, lossMask, states } = found.sample;
  const { taps, hidden } = run.plan.options.shape;
  const tensors: TensorSpec[] = [{ name: "token_ids", dtype: "I64", shape: [ids.length] }];
  const chunks: Uint8Array[] = [widened(ids)];
  if (lossMask) {
    tensors.push({ name: "loss_mask", dtype: "I64", shape: [ids.length] });
    chunks.push(widened(lossMask));
  }
  tensors.push({ name: "hidden_states", dtype: "BF16", shape: [ids.length, taps, hidden] });
  chunks.push(new Uint8Array(states.buffer, states.byteOffset, states.byteLength));
  const metadata = {
    run_id: run.record.run_id,
    row: String(found.row),
    taps: run.record.identity.taps.join(),
  };
  return [buildHeader(tensors, metadata), ...chunks];
}

function widened(values: Int32Array | Uint8Array): Uint8Array {
  const wide = BigInt64Array.from(values, (value) => BigInt(value));
  return new Uint8Array(wide.buffer);
}

function sampleJson({ row, key, layout, sample, checked }: Found, run: StoredRun) {
  const { taps, hidden } = run.plan.options.shape;
  return {
    row,
    tokens: sample.ids.length,
    taps: run.record.identity.taps,
    shape: [sample.ids.length, taps, hidden],
    dtype: "bfloat16",
    token_ids: [...sample.ids],
    loss_mask: sample.lossMask && [...sample.lossMask],
    rms: run.record.identity.taps.map((_, tap) => tapRms(sample.states, { tap, taps, hidden })),
    key,
    start_byte: layout.startByte,
    end_byte: layout.endByte,
    checked,
  };
}

function sampleLines({ row, key, layout, sample, checked }: Found, run: StoredRun): string[] {
  const { taps, hidden } = run.plan.options.shape;
  const { ids, lossMask, states } = sample;
  const supervised = lossMask?.reduce((sum, value) => sum + value, 0);
  const lines = [
    `row ${row}: ${ids.length} tokens${supervised === undefined ? "" : `, ${supervised} supervised`}`,
    `from ${key}, bytes ${layout.startByte}-${layout.endByte}${checked ? ", CRC verified" : ""}`,
    `token_ids      [${ids.length}]  ${someOf([...ids.slice(0, SHOWN)], ids.length)}`,
    `hidden_states  [${ids.length}, ${taps}, ${hidden}] bf16`,
  ];
  run.record.identity.taps.forEach((block, tap) => {
    const first = Array.from({ length: Math.min(4, hidden) }, (_, i) => float(states[tap * hidden + i]!));
    const rms = tapRms(states, { tap, taps, hidden });
    lines.push(`  block ${block}: rms ${rms.toPrecision(4)}, first token ${someOf(first, hidden)}`);
  });
  return lines;
}

function someOf(values: number[], total: number): string {
  const shown = values.map((value) => (Number.isInteger(value) ? value : value.toPrecision(4))).join(" ");
  return values.length < total ? `${shown} ...` : shown;
}

/** Root mean square of one tap's states over all tokens. */
function tapRms(
  states: Uint16Array,
  { tap, taps, hidden }: { tap: number; taps: number; hidden: number },
): number {
  let sum = 0;
  let count = 0;
  for (let start = tap * hidden; start < states.length; start += taps * hidden) {
    for (let i = start; i < start + hidden; i += 1) sum += float(states[i]!) ** 2;
    count += hidden;
  }
  return Math.sqrt(sum / count);
}

const bits = new Uint32Array(1);
const asFloat = new Float32Array(bits.buffer);

/** bf16 is the upper half of a float32. */
function float(bf16: number): number {
  bits[0] = bf16 << 16;
  return asFloat[0]!;
}
