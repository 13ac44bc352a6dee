import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { crc32c } from "../../src/base/checksum.ts";
import { silentLog } from "../../src/base/log.ts";
import { parseHeader } from "../../src/base/safetensors.ts";
import { idsCrc32c, refusedRows } from "../../src/engine/check-states.ts";
import type { EngineCommand } from "../../src/engine/child.ts";
import { Engine } from "../../src/engine/engine.ts";
import { EngineError } from "../../src/engine/engine-error.ts";
import type { ExtractRequest, LoadRequest } from "../../src/engine/protocol.ts";

export interface EngineUnderTest {
  command: EngineCommand;
  /** Absolute path of a Hugging Face model directory, with `golden.safetensors` or without. */
  model: string;
  facts: { arch: string; blocks: number; hidden: number; vocab: number };
  /** Ascending. */
  taps: number[];
  load?: Partial<LoadRequest>;
  /** Added to the environment, it makes libraries in the child print to stdout, early and often. */
  printingEnv: Record<string, string>;
  /** Largest relative L2 error of a token's states alone against in a mixed batch. bf16 rounding is 2^-8. */
  batchTolerance: number;
  /** The same against the golden file's float32 states. */
  goldenTolerance: number;
  /** The exit code after SIGTERM is the child's own business; how long it may take to load is not. */
  loadMs?: number;
}

/** Byte that the part files are filled with, to see what an engine left alone. */
const UNTOUCHED = 0xa5;

/**
 * What every engine's child must do, whatever runs the model in it (docs/engine-protocol.md in the form of tests).
 * Call it at the top level of a test file; `make` may be given later values (ports, built paths) by beforeAll hooks.
 */
export function describeEngine(name: string, make: () => EngineUnderTest | Promise<EngineUnderTest>): void {
  describe(`${name} speaks the engine protocol`, () => {
    let under: EngineUnderTest;
    let directory: string;
    /** Loaded once; tests that end a child start their own. */
    let engine: Engine;

    beforeAll(async () => {
      under = await make();
      directory = mkdtempSync(join(tmpdir(), "forebay-conformance-"));
      engine = await start();
      await engine.load(loadRequest(under));
    });
    afterAll(async () => {
      await engine?.kill();
      rmSync(directory, { recursive: true, force: true });
    });

    async function start(env: Record<string, string> = {}): Promise<Engine> {
      const command = { ...under.command, env: { ...under.command.env, ...env } };
      const limits = { loadMs: under.loadMs ?? 120_000, stopGraceMs: 5_000 };
      return Engine.start({ command, label: name, log: silentLog, stderrFile: null, limits });
    }
    async function startOwn(env: Record<string, string> = {}): Promise<Engine> {
      const own = await start(env);
      onTestFinished(async () => void (await own.kill()));
      return own;
    }

    /** A part file for samples of these ids, with gaps between them, and the request for it. */
    function request(
      samples: { row: number; ids: number[] }[],
      attempt = 1,
    ): Omit<ExtractRequest, "type" | "id"> {
      const file = join(directory, `${Math.random().toString(36).slice(2)}.${attempt}.part`);
      let offset = 128;
      const placed = samples.map((sample) => {
        const at = offset;
        offset += sample.ids.length * tokenBytes(under) + 64;
        return { ...sample, offset: at };
      });
      writeFileSync(file, Buffer.alloc(offset, UNTOUCHED));
      return { attempt, file, samples: placed };
    }
    async function statesOf(ids: number[], more: number[][] = []): Promise<Float32Array> {
      const asked = request([ids, ...more].map((sample, row) => ({ row, ids: sample })));
      const answer = await engine.extract(asked);
      expect(answer.failed).toEqual([]);
      return readStates(asked, 0, under);
    }

    test("it greets first, with its pid and versions", () => {
      expect(engine.hello.pid).toBe(engine.pid);
      expect(Object.keys(engine.hello.versions).length).toBeGreaterThan(0);
      expect(engine.hello.devices.length).toBeGreaterThan(0);
    });

    test("it tells the model's facts and how much it wants outstanding", () => {
      expect(engine.loaded).toMatchObject(under.facts);
      expect(engine.loaded!.slots.batches).toBeGreaterThan(0);
      expect(engine.loaded!.slots.tokens).toBeGreaterThan(0);
      expect(engine.loaded!.forward_tokens ?? 1).toBeGreaterThan(0);
    });

    test("several requests are outstanding; bytes, checksums, ids and statistics are those of the files", async () => {
      const requests = [[5, 1, 17], [3], [40, 2, 9, 9]].map((lengths, r) =>
        request(
          lengths.map((tokens, i) => ({ row: r * 100 + i, ids: idsOf(tokens, r * 10 + i, under) })),
          r + 1,
        ),
      );
      const progress = requests.map((): number[] => []);
      const answers = await Promise.all(
        requests.map((one, r) => engine.extract(one, (done) => progress[r]!.push(done))),
      );
      answers.forEach((answer, r) => {
        const asked = requests[r]!;
        const { taps, facts } = under;
        expect(answer.failed).toEqual([]);
        expect(
          refusedRows(asked.samples, answer.samples, { taps: taps.length, hidden: facts.hidden }),
        ).toEqual([]);
        expect(progress[r]!.at(-1)).toBe(asked.samples.reduce((sum, { ids }) => sum + ids.length, 0));
        const file = readFileSync(asked.file);
        const free = new Uint8Array(file.length).fill(1);
        asked.samples.forEach(({ ids, offset, row }, i) => {
          const told = answer.samples.find((sample) => sample.row === row)!;
          const bytes = file.subarray(offset, offset + ids.length * tokenBytes(under));
          free.fill(0, offset, offset + bytes.length);
          expect(told.bytes).toBe(bytes.length);
          expect(told.crc32c).toBe(crc32c(bytes));
          expect(told.ids_crc32c).toBe(idsCrc32c(ids));
          expectStats(told.stats, readStates(asked, i, under), under);
        });
        // Not one byte outside the samples' places was written.
        expect(file.every((byte, at) => free[at] === 0 || byte === UNTOUCHED)).toBe(true);
      });
    });

    test("states are the same alone and among samples of other lengths", async () => {
      const ids = idsOf(23, 7, under);
      const alone = await statesOf(ids);
      const mixed = await statesOf(ids, [
        idsOf(1, 1, under),
        idsOf(64, 2, under),
        idsOf(23, 3, under),
        idsOf(24, 4, under),
      ]);
      expect(relativeError(mixed, alone, under)).toBeLessThanOrEqual(under.batchTolerance);
      // The control: other ids are told apart by far.
      const other = await statesOf(idsOf(23, 8, under));
      expect(relativeError(other, alone, under)).toBeGreaterThan(10 * Math.max(under.batchTolerance, 0.01));
    });

    test("states are those of the golden file, where the model has one", async () => {
      for (const { ids, blocks, hidden } of readGolden(under)) {
        const states = await statesOf(ids, [idsOf(11, 5, under)]);
        const width = under.facts.hidden;
        let worst = 0;
        under.taps.forEach((tap, slot) => {
          const kept = blocks.indexOf(tap);
          if (kept < 0) return;
          for (let token = 0; token < ids.length; token += 1) {
            const a = states.subarray((token * under.taps.length + slot) * width).subarray(0, width);
            const b = hidden.subarray((token * blocks.length + kept) * width).subarray(0, width);
            worst = Math.max(worst, distance(a, b));
          }
        });
        expect(worst).toBeLessThanOrEqual(under.goldenTolerance);
      }
    });

    test("an id beyond the vocabulary fails its row by name; the others are done, and the child lives", async () => {
      const asked = request([
        { row: 1, ids: idsOf(4, 1, under) },
        { row: 2, ids: [1, under.facts.vocab, 2] },
        { row: 3, ids: idsOf(5, 2, under) },
      ]);
      const answer = await engine.extract(asked);
      expect(answer.failed).toMatchObject([{ row: 2, kind: "bad-request", named: true, retry: "no" }]);
      expect(answer.samples.map(({ row }) => row)).toEqual([1, 3]);
      expect(engine.usable).toBe(true);
    });

    test("a file that is not there is an io error with its errno; the child lives", async () => {
      const asked = { ...request([{ row: 1, ids: [1, 2, 3] }]), file: join(directory, "missing.part") };
      const answer = await engine.extract(asked);
      expect(answer.failed).toMatchObject([{ row: 1, kind: "io", errno: "ENOENT" }]);
      await statesOf([1, 2, 3]);
    });

    test("a model that is not there, and taps that are none of its blocks, are refused with the reason", async () => {
      for (const wrong of [{ model: join(directory, "no-model") }, { taps: [0, under.facts.blocks] }]) {
        const own = await startOwn();
        const error = await own.load({ ...loadRequest(under), ...wrong }).catch((e: unknown) => e);
        expect(error).toBeInstanceOf(EngineError);
        expect(error).toMatchObject({ kind: "bad-request", retry: "no" });
      }
    });

    test("what libraries print does not get into its answers", async () => {
      const own = await startOwn(under.printingEnv);
      await own.load(loadRequest(under));
      const answer = await own.extract(request([{ row: 1, ids: idsOf(9, 1, under) }]));
      expect(answer.samples).toHaveLength(1);
      const { stderrTail } = await own.shutdown();
      expect(stderrTail.join("\n")).toContain("stray");
    });

    test("asked to shut down it says bye and exits with 0, idle or not", async () => {
      const idle = await startOwn();
      expect(await idle.shutdown()).toMatchObject({
        code: 0,
        signal: null,
        killedByUs: false,
        saidBye: true,
      });
      const busy = await startOwn();
      await busy.load(loadRequest(under));
      const rows = Array.from({ length: 20 }, (_, row) => ({ row, ids: idsOf(60, row, under) }));
      const answer = busy.extract(request(rows)).catch((error: unknown) => error);
      expect(await busy.shutdown()).toMatchObject({
        code: 0,
        signal: null,
        killedByUs: false,
        saidBye: true,
      });
      await answer;
    });

    test("the end of its stdin ends it, also while it is loading", async () => {
      for (const isLoading of [false, true]) {
        const { file, args, env } = under.command;
        const child = spawn(file, args, { env, detached: true, stdio: ["pipe", "pipe", "ignore"] });
        onTestFinished(() => {
          if (child.exitCode === null && child.signalCode === null) process.kill(-child.pid!, "SIGKILL");
        });
        await new Promise<void>((resolve) =>
          createInterface({ input: child.stdout }).once("line", () => resolve()),
        );
        if (isLoading)
          child.stdin.write(`${JSON.stringify({ ...loadRequest(under), type: "load", id: 1 })}\n`);
        const exited = new Promise<void>((resolve) => child.once("exit", () => resolve()));
        child.stdin.end();
        await exited;
      }
    });

    test("SIGTERM ends it", async () => {
      const own = await startOwn();
      process.kill(own.pid, "SIGTERM");
      const exit = await own.exited;
      expect(exit.kind).toBe("crash");
      expect(exit.signal === "SIGTERM" || exit.code !== null).toBe(true);
    });
  });
}

function loadRequest(under: EngineUnderTest): Omit<LoadRequest, "type" | "id"> {
  return { model: under.model, dtype: "auto", device: null, taps: under.taps, options: {}, ...under.load };
}

function tokenBytes({ taps, facts }: EngineUnderTest): number {
  return taps.length * facts.hidden * 2;
}

/** Made-up ids within the vocabulary, other ones for each seed. */
function idsOf(tokens: number, seed: number, { facts }: EngineUnderTest): number[] {
  return Array.from({ length: tokens }, (_, i) => ((i + 1) * 7919 + seed * 104_729) % facts.vocab);
}

/** bf16 [tokens, taps, hidden] of sample number `index`, widened. */
function readStates(
  { file, samples }: Omit<ExtractRequest, "type" | "id">,
  index: number,
  under: EngineUnderTest,
): Float32Array {
  const { ids, offset } = samples[index]!;
  const bytes = readFileSync(file).subarray(offset, offset + ids.length * tokenBytes(under));
  const words = new Uint32Array(bytes.length / 2);
  for (let i = 0; i < words.length; i += 1) words[i] = bytes.readUInt16LE(2 * i) << 16;
  return new Float32Array(words.buffer);
}

function expectStats(
  stats: { mean: number | null; rms: number | null; absmax: number | null }[],
  states: Float32Array,
  { taps, facts }: EngineUnderTest,
): void {
  expect(stats).toHaveLength(taps.length);
  stats.forEach((told, tap) => {
    let [sum, squares, absmax, count] = [0, 0, 0, 0];
    for (let start = tap * facts.hidden; start < states.length; start += taps.length * facts.hidden) {
      for (const value of states.subarray(start, start + facts.hidden)) {
        sum += value;
        squares += value ** 2;
        absmax = Math.max(absmax, Math.abs(value));
        count += 1;
      }
    }
    const rms = Math.sqrt(squares / count);
    // Before or after rounding to bf16 is left to the engine.
    expect(Math.abs(told.mean! - sum / count)).toBeLessThanOrEqual(0.01 * rms);
    expect(Math.abs(told.rms! - rms)).toBeLessThanOrEqual(0.01 * rms);
    expect(Math.abs(told.absmax! - absmax)).toBeLessThanOrEqual(0.01 * absmax);
  });
}

/** The largest over tokens and taps. */
function relativeError(a: Float32Array, b: Float32Array, { facts }: EngineUnderTest): number {
  expect(a.length).toBe(b.length);
  let worst = 0;
  for (let start = 0; start < a.length; start += facts.hidden) {
    const end = start + facts.hidden;
    worst = Math.max(worst, distance(a.subarray(start, end), b.subarray(start, end)));
  }
  return worst;
}

/** |a - b| / |b|, L2 */
function distance(a: Float32Array, b: Float32Array): number {
  let [difference, norm] = [0, 0];
  for (let i = 0; i < b.length; i += 1) {
    difference += (a[i]! - b[i]!) ** 2;
    norm += b[i]! ** 2;
  }
  return Math.sqrt(difference / norm);
}

/** Six sequences: `s<k>.input_ids`, `.blocks` and `.hidden` (F32 [tokens, blocks, hidden]). */
function readGolden({ model }: EngineUnderTest): { ids: number[]; blocks: number[]; hidden: Float32Array }[] {
  let file: Buffer;
  try {
    file = readFileSync(join(model, "golden.safetensors"));
  } catch {
    return [];
  }
  const { tensors } = parseHeader(file, model, file.length);
  const bytes = (name: string) => {
    const { startByte, endByte } = tensors.get(name)!;
    return new Uint8Array(file.subarray(startByte, endByte)).buffer;
  };
  return [0, 1, 2, 3, 4, 5].map((k) => ({
    ids: [...new BigInt64Array(bytes(`s${k}.input_ids`))].map(Number),
    blocks: [...new BigInt64Array(bytes(`s${k}.blocks`))].map(Number),
    hidden: new Float32Array(bytes(`s${k}.hidden`)),
  }));
}
