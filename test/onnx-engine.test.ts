import { spawn } from "node:child_process";
import { once } from "node:events";
import {
  chmodSync,
  cpSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  truncateSync,
  unlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { afterAll, afterEach, beforeAll, describe, expect, it } from "vitest";
import { crc32c } from "../src/base/checksum.ts";
import { silentLog } from "../src/base/log.ts";
import { Engine } from "../src/engine/engine.ts";
import type { Answer, ExtractSample, Request } from "../src/engine/protocol.ts";
import {
  type GoldenSequence,
  MODELS,
  RELATIVE_ERROR_MAX,
  readGolden,
  readSequence,
  worstDistance,
} from "./support/golden.ts";

type OnnxCommand = typeof import("../src/engine/onnx/command.ts");

/** From dist/, where child.js is. */
const built = new URL("../dist/engine/onnx/command.js", import.meta.url).href;
const { onnxEngineCommand } = (await import(built)) as OnnxCommand;

const SUPPORTED = [
  "tiny-qwen3",
  "random-llama",
  "random-llama-rope3",
  "random-llama-tied",
  "random-qwen2",
  "random-qwen3",
  "random-qwen3-sharded",
];

const scratch = mkdtempSync(join(tmpdir(), "forebay-onnx-"));
const env = { PATH: process.env.PATH ?? "" };
const engines: Engine[] = [];
let files = 0;

afterEach(async () => {
  await Promise.all(engines.splice(0).map((engine) => engine.kill()));
});
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

// Each sequence alone, and in chunks, goes through the whole program in golden-run.test.ts.
describe.each(SUPPORTED)("%s against transformers' own states", (model) => {
  const golden = readGolden(model);
  const blocks = golden[0]!.blocks;
  let engine: Engine;
  beforeAll(async () => {
    engine = await startEngine(join(MODELS, model), blocks, { forward_tokens: 700 });
    expect(engine.loaded).toMatchObject({ forward_tokens: 700 });
  });
  afterAll(() => engine.kill());

  it("in mixed batches, with prefixes of every length beside them, from several requests at once", async () => {
    const rows = mixedRows(golden);
    const thirds = [0, 1, 2].map((third) => rows.filter((_, j) => j % 3 === third));
    const answers = await Promise.all(thirds.map((third) => extract(engine, blocks, third)));
    for (const [third, { states, forwards }] of answers.entries()) {
      // Fewer forwards than samples: they did go in batches.
      expect(forwards).toBeLessThan(thirds[third]!.length);
      for (const { row, sequence } of thirds[third]!) expectGolden(states.get(row)!, blocks, sequence);
    }
  });

  it("the gate passes on what was stored, and names the block where two taps are swapped", async () => {
    const rows = golden.map(({ ids }, row) => ({ row, ids }));
    const { file, samples } = await extract(engine, blocks, rows);
    const kinds = ["injection" as const, "pad-independence" as const, "greedy" as const];
    const { results } = await engine.check({ kinds, file, samples });
    expect(results.map(({ kind, ok, message }) => ({ kind, ok, message }))).toEqual(
      kinds.map((kind) => ({ kind, ok: true, message: expect.any(String) })),
    );
    const injection = results[0]!;
    expect(injection.control!).toBeGreaterThan(10 * injection.limit!);
    swapTaps(file, samples, { taps: blocks.length, hidden: golden[0]!.hiddenSize, first: 0, second: 1 });
    const swapped = await engine.check({ kinds: ["injection"], file, samples });
    expect(swapped.results[0]).toMatchObject({ kind: "injection", ok: false, tap: 0 });
  });
});

describe("what is answered", () => {
  it("each sample's bytes, CRCs and statistics are those of the file", async () => {
    const [, , , sequence] = readGolden("random-llama");
    const engine = await start("random-llama", [1, 4]);
    const { answer, states, file, samples } = await extract(engine, [1, 4], [{ row: 9, ids: sequence!.ids }]);
    const [sample] = answer.samples;
    const stored = readFileSync(file).subarray(samples[0]!.offset);
    const values = Array.from(states.get(9)!, bf16);
    const ofTap = [0, 1].map((tap) => values.filter((_, at) => Math.floor(at / 64) % 2 === tap));
    expect(sample).toMatchObject({
      row: 9,
      tokens: 33,
      bytes: 33 * 2 * 64 * 2,
      crc32c: crc32c(stored),
      ids_crc32c: crc32c(Buffer.from(Int32Array.from(sequence!.ids).buffer)),
      finite: true,
      constant: false,
    });
    for (const [tap, { mean, rms, absmax }] of sample!.stats.entries()) {
      const tapValues = ofTap[tap]!;
      const meanSquare = tapValues.reduce((sum, x) => sum + x * x, 0) / tapValues.length;
      expect(rms! / Math.sqrt(meanSquare)).toBeCloseTo(1, 2);
      expect(mean! - tapValues.reduce((sum, x) => sum + x, 0) / tapValues.length).toBeCloseTo(0, 2);
      expect(absmax! / Math.max(...tapValues.map(Math.abs))).toBeCloseTo(1, 2);
    }
  });

  it("the same sample is bitwise the same alone and in a batch of equal lengths", async () => {
    const { ids } = readGolden("tiny-qwen3")[4]!;
    const engine = await start("tiny-qwen3", [2, 7]);
    const alone = await extract(engine, [2, 7], [{ row: 0, ids }]);
    const together = await extract(
      engine,
      [2, 7],
      [
        { row: 0, ids: ids.toReversed() },
        { row: 1, ids },
        { row: 2, ids: ids.slice(0, 100) },
      ],
    );
    expect(together.states.get(1)).toEqual(alone.states.get(0));
  });

  it("chunks of 64 tokens take several forwards, and give the golden states", async () => {
    const [model, golden] = ["tiny-qwen3", readGolden("tiny-qwen3")];
    const blocks = golden[0]!.blocks;
    const chunking = await start(model, blocks, { prefill_chunk_tokens: 64 });
    const rows = golden.map(({ ids }, row) => ({ row, ids }));
    const { states, forwards } = await extract(chunking, blocks, rows);
    // 300 tokens in 5 chunks, 128 in 2, and the short ones.
    expect(forwards).toBeGreaterThanOrEqual(8);
    for (const [k, sequence] of golden.entries()) expectGolden(states.get(k)!, blocks, sequence);
  });

  it("nothing outside a sample's own bytes is touched", async () => {
    const engine = await start("random-llama", [0]);
    const file = scratchFile(4_096, 0xa5);
    const samples = [{ row: 1, ids: [5, 6], offset: 1_024 }];
    await engine.extract({ attempt: 0, file, samples });
    const bytes = readFileSync(file);
    const own = bytes.subarray(1_024, 1_024 + 2 * 64 * 2);
    expect(bytes.subarray(0, 1_024).every((byte) => byte === 0xa5)).toBe(true);
    expect(bytes.subarray(1_024 + own.length).every((byte) => byte === 0xa5)).toBe(true);
    expect(own.every((byte) => byte === 0xa5)).toBe(false);
    expect(bytes.length).toBe(4_096);
  });

  it("f32 weights give bitwise what the same numbers in bf16 give, f16 weights what f16 can hold of them", async () => {
    const golden = readGolden("random-qwen3")[3]!;
    const rows = [{ row: 0, ids: golden.ids }];
    const stored = await extract(await start("random-qwen3", [5]), [5], rows);
    const wide = await extract(await startDirectory(rewrittenWeights("random-qwen3", "F32"), [5]), [5], rows);
    const half = await extract(await startDirectory(rewrittenWeights("random-qwen3", "F16"), [5]), [5], rows);
    expect(wide.states.get(0)).toEqual(stored.states.get(0));
    expectGolden(half.states.get(0)!, [5], golden);
  });

  it("linear rope scaling is transformers' own", async () => {
    const folder = fileURLToPath(new URL("../fixtures/rope-linear", import.meta.url));
    const golden = readSequence(join(folder, "golden.safetensors"), 3);
    const dir = copyModel("random-llama");
    rmSync(join(dir, "config.json"));
    cpSync(join(folder, "config.json"), join(dir, "config.json"));
    const engine = await startDirectory(dir, golden.blocks);
    const { states } = await extract(engine, golden.blocks, [{ row: 0, ids: golden.ids }]);
    expectGolden(states.get(0)!, golden.blocks, golden);
  });
});

describe("bad input is answered, and the engine lives on", () => {
  it("rows with ids outside the vocabulary, over the positions, or beyond the file fail by themselves", async () => {
    const engine = await start("random-llama", [0]);
    const file = scratchFile(600 * 64 * 2);
    const samples = [
      { row: 0, ids: [384], offset: 0 },
      { row: 1, ids: [1, 2, 3], offset: 0 },
      { row: 2, ids: Array.from({ length: 513 }, () => 1), offset: 0 },
      { row: 3, ids: [1, 2], offset: 600 * 64 * 2 - 2 * 64 * 2 + 2 },
    ];
    const answer = await engine.extract({ attempt: 3, file, samples });
    expect(answer.samples.map((sample) => sample.row)).toEqual([1]);
    expect(answer.failed).toMatchObject([
      { row: 0, kind: "bad-request", message: "row 0: expected ids below 384, found 384" },
      { row: 2, kind: "bad-request", message: "row 2: expected at most 512 tokens, found 513" },
      { row: 3, kind: "bad-request", message: expect.stringContaining("the file has 76800") },
    ]);
    expect(engine.usable).toBe(true);
  });

  it("a file that is not there, or may not be written, is io with its errno", async () => {
    const engine = await start("random-llama", [0]);
    const samples = [{ row: 1, ids: [5], offset: 0 }];
    const missing = await engine.extract({ attempt: 0, file: join(scratch, "none"), samples });
    expect(missing.failed).toMatchObject([{ row: 1, kind: "io", errno: "ENOENT" }]);
    expect(engine.usable).toBe(true);
  });

  it("a disk that is full fails its own request only, alone or in one forward with others, whole or in chunks", async () => {
    const engine = await start("random-llama", [0], { prefill_chunk_tokens: 64 });
    const request = (file: string, lengths: number[]) => ({
      attempt: 0,
      file,
      samples: lengths.map((tokens, row) => ({
        row,
        ids: Array.from({ length: tokens }, () => 1),
        offset: 0,
      })),
    });
    const good = scratchFile(100 * 64 * 2);
    const answers = await Promise.all([
      engine.extract(request("/dev/full", [1, 5])),
      engine.extract(request(good, [1, 5])),
      engine.extract(request("/dev/full", [100])),
      engine.extract(request(good, [100])),
    ]);
    expect(answers.map(({ failed }) => failed.map(({ kind, errno }) => `${kind} ${errno}`))).toEqual([
      ["io ENOSPC", "io ENOSPC"],
      [],
      ["io ENOSPC"],
      [],
    ]);
    expect(engine.usable).toBe(true);
  });

  it("keys and values that would not fit the memory cap are refused by number, before any work", async () => {
    const engine = await start("random-llama", [4], { prefill_chunk_tokens: 64, memory_bytes: 400_000 });
    const file = scratchFile(300 * 64 * 2);
    const samples = [{ row: 7, ids: Array.from({ length: 300 }, () => 1), offset: 0 }];
    const { failed } = await engine.extract({ attempt: 0, file, samples });
    expect(failed).toMatchObject([{ row: 7, kind: "oom", retry: "no" }]);
    expect(failed[0]!.message).toContain("raise memory_bytes");
  });

  it("a memory cap that an attention does not fit makes chunks, and the same states", async () => {
    const golden = readGolden("random-llama");
    const blocks = golden[0]!.blocks;
    const engine = await start("random-llama", blocks, { memory_bytes: 2_000_000 });
    const { states, forwards } = await extract(engine, blocks, [{ row: 0, ids: golden[5]!.ids }]);
    expect(forwards).toBeGreaterThan(1);
    expectGolden(states.get(0)!, blocks, golden[5]!);
  });
});

describe("a model that cannot be loaded is refused with what to do", () => {
  it.each(["random-mistral", "random-gemma3", "random-qwen3_5", "random-qwen3_5-vl"])("%s", async (model) => {
    await expect(start(model, [0])).rejects.toThrow("--engine transformers");
  });

  it.each([
    [[1, 0], "taps must ascend"],
    [[0, 0], "tap 0 stands twice"],
    [[5], "tap 5 is out of range: the model has 5 blocks"],
  ])("taps %j", async (taps, message) => {
    await expect(start("random-llama", taps)).rejects.toThrow(message);
  });

  it("a cut file, a missing shard, a config without a key, a dtype it does not compute in", async () => {
    const cut = copyModel("random-llama");
    truncateSync(join(cut, "model.safetensors"), 100_000);
    await expect(startDirectory(cut, [0])).rejects.toThrow("but the file has 100000");
    const sharded = copyModel("random-qwen3-sharded");
    unlinkSync(join(sharded, "model-00002-of-00002.safetensors"));
    await expect(startDirectory(sharded, [0])).rejects.toThrow("is missing");
    await expect(
      startDirectory(rewrittenConfig("random-llama", { hidden_size: undefined }), [0]),
    ).rejects.toThrow('the key "hidden_size"');
    await expect(
      startDirectory(rewrittenConfig("random-llama", { intermediate_size: 161 }), [0]),
    ).rejects.toThrow("expected the shape [161,64], found [160,64]");
  });
});

describe("the child process", () => {
  it("ends when its stdin ends, idle or busy", async () => {
    for (const busy of [false, true]) {
      const child = startRaw();
      const answers = readAnswers(child);
      expect((await answers.next()).value).toMatchObject({
        type: "hello",
        proto: 1,
        pid: child.pid,
        engine: "onnx",
      });
      if (busy) {
        child.send(loadRequest(join(MODELS, "tiny-qwen3"), [7], {}));
        expect((await answers.next()).value).toMatchObject({ type: "loaded", blocks: 8, hidden: 192 });
        const samples = Array.from({ length: 400 }, (_, row) => ({
          row,
          ids: Array.from({ length: 500 }, () => 1),
          offset: 0,
        }));
        child.send({ type: "extract", id: 2, attempt: 0, file: scratchFile(500 * 192 * 2), samples });
        expect((await answers.next()).value).toMatchObject({ type: "progress", id: 2 });
      }
      child.process.stdin.end();
      await child.exited;
    }
  });

  it("says bye and exits 0 when asked to", async () => {
    const child = startRaw();
    const answers = readAnswers(child);
    await answers.next();
    child.send({ type: "shutdown" });
    expect((await answers.next()).value).toEqual({ type: "bye" });
    expect(await child.exited).toEqual([0, null]);
  });

  it("a line that is no request ends it with 70, and what it prints goes to stderr only", async () => {
    const child = startRaw();
    const answers = readAnswers(child);
    await answers.next();
    child.process.stdin.write("print me\n");
    expect((await answers.next()).done).toBe(true);
    expect(await child.exited).toEqual([70, null]);
    expect(child.stderr()).toContain("print me");
  });

  it("stray prints of any library land on stderr, even those that write to descriptor 1 themselves", async () => {
    const stray = join(scratch, "stray.cjs");
    writeFileSync(stray, 'console.log("from console"); require("fs").writeSync(1, "from descriptor 1\\n");');
    const child = startRaw({ NODE_OPTIONS: `--require=${stray}` });
    const answers = readAnswers(child);
    expect((await answers.next()).value).toMatchObject({ type: "hello" });
    child.send({ type: "shutdown" });
    expect((await answers.next()).value).toEqual({ type: "bye" });
    await child.exited;
    expect(child.stderr()).toContain("from console");
    expect(child.stderr()).toContain("from descriptor 1");
  });
});

async function start(model: string, taps: number[], options: Record<string, number> = {}): Promise<Engine> {
  return startDirectory(join(MODELS, model), taps, options);
}

/** Ended after the test. */
async function startDirectory(model: string, taps: number[], options: Record<string, number> = {}) {
  const engine = await startEngine(model, taps, options);
  engines.push(engine);
  return engine;
}

async function startEngine(model: string, taps: number[], options: Record<string, number>): Promise<Engine> {
  const command = onnxEngineCommand({ env });
  const engine = await Engine.start({ command, label: "onnx-test", log: silentLog, stderrFile: null });
  await engine.load({ model, dtype: "auto", device: null, taps, options: { threads: 1, ...options } });
  return engine;
}

function expectGolden(states: Uint16Array, taps: number[], sequence: GoldenSequence): void {
  const what = `${states.length / taps.length / sequence.hiddenSize} of ${sequence.ids.length} tokens`;
  expect(worstDistance(states, taps, sequence), what).toBeLessThanOrEqual(RELATIVE_ERROR_MAX);
}

/** Extracts `rows` into a file of their own. `forwards` counts the answers about progress. */
async function extract(engine: Engine, taps: number[], rows: { row: number; ids: number[] }[]) {
  const rowBytes = taps.length * engine.loaded!.hidden * 2;
  let bytes = 64;
  const samples: ExtractSample[] = rows.map(({ row, ids }) => {
    const offset = bytes;
    bytes += ids.length * rowBytes;
    return { row, ids, offset };
  });
  const file = scratchFile(bytes);
  let forwards = 0;
  const answer = await engine.extract({ attempt: 0, file, samples }, () => {
    forwards += 1;
  });
  expect(answer.failed).toEqual([]);
  const stored = readFileSync(file);
  const states = new Map(
    answer.samples.map((sample) => {
      const { offset } = samples.find(({ row }) => row === sample.row)!;
      const piece = stored.subarray(offset, offset + sample.bytes);
      expect(crc32c(piece), `CRC of row ${sample.row}`).toBe(sample.crc32c);
      return [sample.row, new Uint16Array(Uint8Array.from(piece).buffer)];
    }),
  );
  return { answer, states, forwards, file, samples };
}

/** All golden sequences, and prefixes of the long ones: a causal model's states of a prefix are the same. */
function mixedRows(golden: GoldenSequence[]): { row: number; ids: number[]; sequence: GoldenSequence }[] {
  const prefixes = golden.flatMap((sequence) =>
    [1, 0.9, 0.7, 0.4].map((share) => ({
      ids: sequence.ids.slice(0, Math.max(1, Math.ceil(sequence.ids.length * share))),
      sequence,
    })),
  );
  return prefixes.map((prefix, row) => ({ row, ...prefix }));
}

function swapTaps(
  file: string,
  samples: ExtractSample[],
  shape: { taps: number; hidden: number; first: number; second: number },
): void {
  const bytes = readFileSync(file);
  const tapBytes = shape.hidden * 2;
  for (const { ids, offset } of samples) {
    for (let token = 0; token < ids.length; token += 1) {
      const at = (tap: number) => offset + (token * shape.taps + tap) * tapBytes;
      const kept = Buffer.from(bytes.subarray(at(shape.first), at(shape.first) + tapBytes));
      bytes.copyWithin(at(shape.first), at(shape.second), at(shape.second) + tapBytes);
      kept.copy(bytes, at(shape.second));
    }
  }
  writeFileSync(file, bytes);
}

function scratchFile(bytes: number, fill = 0): string {
  files += 1;
  const file = join(scratch, `${files}.part`);
  writeFileSync(file, Buffer.alloc(bytes, fill));
  return file;
}

function copyModel(model: string): string {
  files += 1;
  const dir = join(scratch, `model-${files}`);
  cpSync(join(MODELS, model), dir, { recursive: true });
  return dir;
}

function rewrittenConfig(model: string, change: Record<string, unknown>): string {
  const dir = copyModel(model);
  const path = join(dir, "config.json");
  chmodSync(path, 0o644);
  writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, "utf8")), ...change }));
  return dir;
}

/** The model with its bf16 weights as F32 or F16; their numbers are the same as long as f16 has them. */
function rewrittenWeights(model: string, dtype: "F32" | "F16"): string {
  const dir = copyModel(model);
  const file = join(dir, "model.safetensors");
  const bytes = readFileSync(file);
  const dataByte = 8 + Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, dataByte).toString("utf8"));
  const factor = dtype === "F32" ? 2 : 1;
  for (const tensor of Object.values<{ dtype: string; data_offsets: number[] }>(header)) {
    if (!tensor.data_offsets) continue;
    tensor.dtype = dtype;
    tensor.data_offsets = tensor.data_offsets.map((offset) => offset * factor);
  }
  const text = Buffer.from(JSON.stringify(header));
  const head = Buffer.alloc(8);
  head.writeBigUInt64LE(BigInt(text.length));
  const values = new Uint16Array(Uint8Array.from(bytes.subarray(dataByte)).buffer);
  const data =
    dtype === "F32"
      ? Uint32Array.from(values, (pattern) => pattern * 0x10000)
      : Uint16Array.from(values, toF16);
  chmodSync(file, 0o644);
  writeFileSync(file, Buffer.concat([head, text, Buffer.from(data.buffer)]));
  return dir;
}

/** A bf16 pattern as f16: exact from 2^-14 on; the fixture's weights are far below f16's 65504. */
function toF16(pattern: number): number {
  const sign = pattern & 0x8000;
  const exponent = ((pattern >> 7) & 0xff) - 127;
  if (exponent > 15) throw new Error("a weight of the fixture does not fit f16");
  if (exponent >= -14) return sign | ((exponent + 15) << 10) | ((pattern & 0x7f) << 3);
  // Subnormal: what is below 2^-24 vanishes, as it would for whoever saved the model in f16.
  const mantissa = ((pattern & 0x7f) | 0x80) << 3;
  const shift = -14 - exponent;
  return sign | (shift > 11 ? 0 : mantissa >> shift);
}

function bf16(pattern: number): number {
  return new Float32Array(Uint32Array.of(pattern * 0x10000).buffer)[0]!;
}

function loadRequest(model: string, taps: number[], options: Record<string, number>): Request {
  return {
    type: "load",
    id: 1,
    model,
    dtype: "auto",
    device: null,
    taps,
    options: { threads: 1, ...options },
  };
}

/** The child without the parent's side. */
function startRaw(extraEnv: Record<string, string> = {}) {
  const command = onnxEngineCommand({ env: { ...env, ...extraEnv } });
  const child = spawn(command.file, command.args, { env: command.env, stdio: ["pipe", "pipe", "pipe"] });
  const stderr: Buffer[] = [];
  child.stderr.on("data", (chunk: Buffer) => stderr.push(chunk));
  return {
    process: child,
    pid: child.pid,
    exited: once(child, "close"),
    send: (request: Request) => child.stdin.write(`${JSON.stringify(request)}\n`),
    stderr: () => Buffer.concat(stderr).toString("utf8"),
  };
}

async function* readAnswers(child: ReturnType<typeof startRaw>): AsyncGenerator<Answer, undefined> {
  for await (const line of createInterface({ input: child.process.stdout })) {
    const answer = JSON.parse(line) as Answer;
    if (answer.type !== "alive") yield answer;
  }
  return undefined;
}
