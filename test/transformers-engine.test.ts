import { chmodSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { silentLog } from "../src/base/log.ts";
import { parseHeader } from "../src/base/safetensors.ts";
import { Engine } from "../src/engine/engine.ts";
import type { ExtractSample, LoadRequest } from "../src/engine/protocol.ts";
import { needPython } from "../src/engine/transformers.ts";
import {
  type GoldenSequence,
  MODELS,
  RELATIVE_ERROR_MAX,
  readGolden,
  worstDistance,
} from "./support/golden.ts";
import { transformersCommand, VENV_PYTHON } from "./support/transformers.ts";

const ALL = [
  "tiny-qwen3",
  "random-llama",
  "random-llama-rope3",
  "random-llama-tied",
  "random-qwen2",
  "random-qwen3",
  "random-qwen3-sharded",
  "random-mistral",
  "random-gemma3",
  "random-qwen3_5",
  "random-qwen3_5-vl",
];
const KINDS = ["injection" as const, "pad-independence" as const, "greedy" as const];

const scratch = mkdtempSync(join(tmpdir(), "forebay-transformers-"));
let files = 0;
/** One child for all models, one after another: importing torch takes seconds. */
let engine: Engine;

beforeAll(async () => {
  engine = await start();
});
afterAll(async () => {
  await engine?.kill();
  rmSync(scratch, { recursive: true, force: true });
});

describe.each(ALL)("%s against the golden states", (model) => {
  const golden = readGolden(model);
  const blocks = golden[0]!.blocks;
  const errorMax = model.includes("qwen3_5") ? 2 * RELATIVE_ERROR_MAX : RELATIVE_ERROR_MAX;

  it("each sequence alone, then in mixed batches from several requests, every block; the gate passes", async () => {
    await load(model, { taps: blocks, options: { threads: 1, forward_tokens: 700 } });
    expect(engine.loaded).toMatchObject({ forward_tokens: 700 });
    for (const [k, sequence] of golden.entries()) {
      const { states } = await extract(blocks, [{ row: k, ids: sequence.ids }]);
      expect(worstDistance(states.get(k)!, blocks, sequence), `s${k}`).toBeLessThanOrEqual(errorMax);
    }
    const rows = mixedRows(golden);
    const thirds = [0, 1, 2].map((third) => rows.filter((_, j) => j % 3 === third));
    const answers = await Promise.all(thirds.map((third) => extract(blocks, third)));
    for (const [third, { states, forwards }] of answers.entries()) {
      expect(forwards).toBeLessThan(thirds[third]!.length);
      for (const { row, sequence } of thirds[third]!) {
        expect(worstDistance(states.get(row)!, blocks, sequence), `row ${row}`).toBeLessThanOrEqual(errorMax);
      }
    }
    const few = golden.slice(2, 5).map(({ ids }, row) => ({ row, ids }));
    const { file, samples } = await extract(blocks, few);
    const { results } = await engine.check({ kinds: KINDS, file, samples });
    expect(results.map(({ kind, ok, message }) => ({ kind, ok, message }))).toEqual(
      KINDS.map((kind) => ({ kind, ok: true, message: expect.any(String) })),
    );
  });
});

describe("what it computes in", () => {
  it("in bf16 the states are those of a bf16 transformers, within what bf16 is off by itself", async () => {
    const golden = readGolden("tiny-qwen3");
    const blocks = golden[0]!.blocks;
    await load("tiny-qwen3", { taps: blocks, dtype: "bfloat16" });
    expect(engine.loaded).toMatchObject({ dtype: "bfloat16", kernels: ["sdpa"] });
    for (const [k, sequence] of golden.entries()) {
      const reference = { ...sequence, hidden: readBf16(`s${k}.hidden_bf16`) };
      const { states } = await extract(blocks, [{ row: k, ids: sequence.ids }]);
      // The reference attends eagerly, and is itself up to 1.8e-2 from float32.
      expect(worstDistance(states.get(k)!, blocks, reference), `s${k}`).toBeLessThanOrEqual(3e-2);
    }
    const { file, samples } = await extract(
      blocks,
      golden.map(({ ids }, row) => ({ row, ids })),
    );
    const { results } = await engine.check({ kinds: KINDS, file, samples });
    expect(results.filter(({ ok }) => !ok)).toEqual([]);
  });

  it("strict: a sample is bitwise the same alone and among others, hybrids too", async () => {
    const sequence = readGolden("random-qwen3_5")[4]!;
    await load("random-qwen3_5", { taps: [1, 7], options: { threads: 1, strict: true } });
    const alone = await extract([1, 7], [{ row: 0, ids: sequence.ids }]);
    const rows = [sequence.ids.toReversed(), sequence.ids, sequence.ids.slice(0, 120)].map((ids, row) => ({
      row,
      ids,
    }));
    const among = await extract([1, 7], rows);
    // 128 and 128 together, 120 by itself.
    expect(among.forwards).toBe(2);
    expect(among.states.get(1)).toEqual(alone.states.get(0));
  });

  it("eager and sdpa attention are within the golden tolerance of one another", async () => {
    const golden = readGolden("random-gemma3");
    await load("random-gemma3", { taps: [5], options: { threads: 1, attn: "eager" } });
    expect(engine.loaded!.kernels).toEqual(["eager"]);
    const { states } = await extract([5], [{ row: 0, ids: golden[3]!.ids }]);
    expect(worstDistance(states.get(0)!, [5], golden[3]!)).toBeLessThanOrEqual(RELATIVE_ERROR_MAX);
  });
});

describe("the gate goes red for what is wrong with the stored bytes", () => {
  const taps = [2, 5, 7];

  it.each([
    ["nothing (the control)", () => {}, null],
    ["two taps swapped", swapTaps, 2],
    ["big-endian", (bytes: Buffer) => bytes.swap16(), 2],
    ["float16 bytes called bfloat16", toFloat16, 2],
    ["one number off by one bf16 step", (bytes: Buffer) => (bytes[0]! ^= 1), 2],
    ["states of the other sample", swapSamples, 2],
  ])("%s", async (_, spoil, tap) => {
    const [a, b] = [readGolden("tiny-qwen3")[3]!.ids, readGolden("tiny-qwen3")[3]!.ids.toReversed()];
    await load("tiny-qwen3", { taps });
    const { file, samples } = await extract(taps, [
      { row: 1, ids: a },
      { row: 2, ids: b },
    ]);
    const bytes = readFileSync(file);
    spoil(bytes.subarray(64));
    writeFileSync(file, bytes);
    const { results } = await engine.check({ kinds: ["injection"], file, samples });
    expect(results[0]).toMatchObject({ kind: "injection", ok: tap === null, tap });
    if (tap !== null) expect(results[0]!.message).toContain(`block ${tap} do not give the model's logits`);
  });
});

// Every other model that is refused: python/tests/test_load.py.
it("a model that needs remote code is refused, its code is not run, and the child ends", async () => {
  const dir = copyModel("random-llama");
  remoteCode(dir);
  const own = await start();
  await expect(own.load(request(dir, { taps: [0] }))).rejects.toThrow(
    "needs Python code that comes with its files",
  );
  expect((await own.exited).signal).toBe("SIGTERM");
});

it("a pinned GPU that is not there ends the child, to be started anew: it does not go on on the CPU", async () => {
  const pinned = "GPU-22b2c6ac-2d49-4863-197c-9c469071178a";
  const own = await start({ CUDA_VISIBLE_DEVICES: pinned });
  await expect(own.load(request(join(MODELS, "random-llama"), { taps: [0] }))).rejects.toMatchObject({
    message: expect.stringContaining(`CUDA_VISIBLE_DEVICES is ${pinned}, and torch 2.13.0`),
    kind: "crash",
    retry: "restart",
  });
  // By itself: 70 is what it says of a crash.
  expect((await own.exited).code).toBe(70);
});

describe("a Python that will not do is refused with the command to run", () => {
  it("one that is not there", () => {
    expect(() => needPython(join(scratch, "python"), {})).toThrow(/cannot be run/);
  });

  it("one without torch", () => {
    const bare = pythonSaying({ python: "3.12", numpy: "2.1.0", safetensors: "0.6.2", crc32c: "2.7" });
    expect(hintOf(() => needPython(bare, {}))).toMatch(
      /torch is not installed; transformers is not installed .*-m pip install 'torch>=2.13' 'transformers>=5.19'/,
    );
  });

  it("one that is too old, or whose transformers is", () => {
    expect(hintOf(() => needPython(pythonSaying({ python: "3.9" }), {}))).toContain("expected Python 3.10");
    const old = {
      python: "3.12",
      torch: "2.13.0",
      transformers: "4.57.1",
      safetensors: "0.7.0",
      numpy: "2.1.0",
    };
    expect(hintOf(() => needPython(pythonSaying({ ...old, crc32c: "2.7" }), {}))).toContain(
      "transformers is 4.57.1, expected 5.19 or newer",
    );
  });

  it("and the one of these tests will do", () => {
    expect(needPython(VENV_PYTHON, {})).toMatchObject({ torch: "2.13.0", transformers: "5.19.0" });
  });
});

function start(env: Record<string, string> = {}): Promise<Engine> {
  const command = transformersCommand(env);
  return Engine.start({ command, label: "transformers-test", log: silentLog, stderrFile: null });
}

type Load = Omit<LoadRequest, "type" | "id">;

function request(model: string, load: Partial<Load>): Load {
  return { model, dtype: "auto", device: null, taps: [0], options: { threads: 1 }, ...load };
}

async function load(model: string, options: Partial<Load>): Promise<void> {
  await engine.load(request(join(MODELS, model), options));
}

/** Extracts `rows` into a file of their own. `forwards` counts the answers about progress. */
async function extract(taps: number[], rows: { row: number; ids: number[] }[]) {
  const rowBytes = taps.length * engine.loaded!.hidden * 2;
  let bytes = 64;
  const samples: ExtractSample[] = rows.map(({ row, ids }) => {
    const offset = bytes;
    bytes += ids.length * rowBytes;
    return { row, ids, offset };
  });
  files += 1;
  const file = join(scratch, `${files}.part`);
  writeFileSync(file, Buffer.alloc(bytes));
  let forwards = 0;
  const answer = await engine.extract({ attempt: 0, file, samples }, () => {
    forwards += 1;
  });
  expect(answer.failed).toEqual([]);
  const stored = readFileSync(file);
  const states = new Map(
    samples.map(({ row, ids, offset }) => {
      const piece = stored.subarray(offset, offset + ids.length * rowBytes);
      return [row, new Uint16Array(Uint8Array.from(piece).buffer)];
    }),
  );
  return { answer, states, forwards, file, samples };
}

/** All golden sequences, and prefixes of the long ones: a causal model's states of a prefix are the same. */
function mixedRows(golden: GoldenSequence[]): { row: number; ids: number[]; sequence: GoldenSequence }[] {
  const prefixes = golden.flatMap((sequence) =>
    [1, 0.95, 0.9, 0.85, 0.8].map((share) => ({
      ids: sequence.ids.slice(0, Math.max(1, Math.ceil(sequence.ids.length * share))),
      sequence,
    })),
  );
  return prefixes.map((prefix, row) => ({ row, ...prefix }));
}

function readBf16(name: string): Float32Array {
  const path = join(MODELS, "tiny-qwen3/golden.safetensors");
  const bytes = readFileSync(path);
  const { startByte, endByte } = parseHeader(bytes, path, bytes.length).tensors.get(name)!;
  const patterns = new Uint16Array(Uint8Array.from(bytes.subarray(startByte, endByte)).buffer);
  return new Float32Array(Uint32Array.from(patterns, (pattern) => pattern * 0x10000).buffer);
}

/** Of each token [3 taps, 192], the first two. */
function swapTaps(bytes: Buffer): void {
  const tapBytes = 192 * 2;
  for (let at = 0; at < bytes.length; at += 3 * tapBytes) {
    const first = Buffer.from(bytes.subarray(at, at + tapBytes));
    bytes.copyWithin(at, at + tapBytes, at + 2 * tapBytes);
    first.copy(bytes, at + tapBytes);
  }
}

function swapSamples(bytes: Buffer): void {
  const half = Buffer.from(bytes.subarray(0, bytes.length / 2));
  bytes.copyWithin(0, bytes.length / 2);
  half.copy(bytes, bytes.length / 2);
}

function toFloat16(bytes: Buffer): void {
  for (let at = 0; at < bytes.length; at += 2) {
    const pattern = bytes.readUInt16LE(at);
    const exponent = Math.min(30, Math.max(1, ((pattern >> 7) & 0xff) - 112));
    bytes.writeUInt16LE((pattern & 0x8000) | (exponent << 10) | ((pattern & 0x7f) << 3), at);
  }
}

function copyModel(model: string): string {
  files += 1;
  const dir = join(scratch, `model-${files}`);
  cpSync(join(MODELS, model), dir, { recursive: true });
  for (const name of ["config.json", "model.safetensors"]) chmodSync(join(dir, name), 0o644);
  return dir;
}

function remoteCode(dir: string): void {
  const path = join(dir, "config.json");
  const own = { model_type: "own", auto_map: { AutoModelForCausalLM: "modeling_own.Own" } };
  writeFileSync(path, JSON.stringify({ ...JSON.parse(readFileSync(path, "utf8")), ...own }));
  // Were it run, it would end the child in another way than the test expects.
  writeFileSync(join(dir, "modeling_own.py"), "import os; os._exit(99)");
}

/** A program that says of itself what the probe would. */
function pythonSaying(versions: Record<string, string>): string {
  files += 1;
  const path = join(scratch, `python-${files}`);
  writeFileSync(path, `#!/bin/sh\necho '${JSON.stringify(versions)}'\n`, { mode: 0o755 });
  return path;
}

function hintOf(action: () => unknown): string {
  try {
    action();
  } catch (error) {
    const { message, hint } = error as { message: string; hint: string };
    return `${message} ${hint}`;
  }
  throw new Error("expected a refusal");
}
