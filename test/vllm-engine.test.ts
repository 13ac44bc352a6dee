import {
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { basename, join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { crc32c } from "../src/base/checksum.ts";
import { silentLog } from "../src/base/log.ts";
import { parseHeader } from "../src/base/safetensors.ts";
import { Engine } from "../src/engine/engine.ts";
import { Fleet } from "../src/engine/fleet.ts";
import type { CheckResult, ExtractRequest } from "../src/engine/protocol.ts";
import type { VllmTarget } from "../src/engine/vllm/command.ts";
import type { BatchOutcome } from "../src/engine/work.ts";
import { smallDisk } from "./support/disks.ts";
import { describeEngine } from "./support/engine-conformance.ts";
import { FakeVllm, type FakeVllmOptions, madeUpStates } from "./support/fake-vllm.mjs";
import { readGolden } from "./support/golden.ts";
import { eventsOf, isAlive, Machine } from "./support/program.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const FIXTURES = join(ROOT, "fixtures/vllm");
const QWEN3 = join(ROOT, "fixtures/models/random-qwen3");
const ENV = { PATH: process.env.PATH ?? "" };
/** The recordings' model, and the taps that its ids 1, 3, 6 stand for. */
const TAPS = [0, 2, 5];
const LAYER_IDS = [1, 3, 6];
const FACTS = { hidden: 256, blocks: 6, vocab: 2048 };
const QUICK = { file_wait_ms: 400, connect_ms: 300 };

let directory: string;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-vllm-test-"));
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

async function commandFor(target: VllmTarget, env: Record<string, string> = {}) {
  const { vllmEngineCommand } = (await import(join(ROOT, "dist/engine/vllm/command.js"))) as {
    vllmEngineCommand: typeof import("../src/engine/vllm/command.ts").vllmEngineCommand;
  };
  return vllmEngineCommand({ target, env: { ...ENV, ...env } });
}

async function startFake(options: Partial<FakeVllmOptions> = {}): Promise<FakeVllm> {
  const folder = mkdtempSync(join(directory, "hs-"));
  const fake = await FakeVllm.start({
    model: FIXTURES,
    served: "vllm",
    layerIds: LAYER_IDS,
    folder,
    ...options,
  });
  onTestFinished(() => fake.stop());
  return fake;
}

async function startEngine(target: VllmTarget, env: Record<string, string> = {}): Promise<Engine> {
  const command = await commandFor(target, env);
  const engine = await Engine.start({ command, label: "vllm-0", log: silentLog, stderrFile: null });
  onTestFinished(async () => void (await engine.kill()));
  return engine;
}

function loadOf(extra: { taps?: number[]; model?: string; options?: Record<string, number> } = {}) {
  return { model: FIXTURES, dtype: "auto" as const, device: null, taps: TAPS, options: QUICK, ...extra };
}

async function loadedEngine(fake: FakeVllm, load = loadOf()): Promise<Engine> {
  const engine = await startEngine({ url: fake.url });
  await engine.load(load);
  return engine;
}

const idsOf = (tokens: number, seed: number) =>
  Array.from({ length: tokens }, (_, i) => (i * 31 + seed * 977) % 2048);

/** A file for `prompts`, and the request for it. */
function request(
  prompts: number[][],
  taps = TAPS.length,
  hidden = FACTS.hidden,
): Omit<ExtractRequest, "type" | "id"> {
  const file = join(mkdtempSync(join(directory, "pack-")), "1.part");
  let offset = 64;
  const samples = prompts.map((ids, row) => {
    const at = offset;
    offset += ids.length * taps * hidden * 2;
    return { row, ids, offset: at };
  });
  writeFileSync(file, Buffer.alloc(offset, 0xa5));
  return { attempt: 1, file, samples };
}

/** bf16 of what the fake server makes up for `ids`. */
function expectedBytes(ids: number[], layerIds = LAYER_IDS, hidden = FACTS.hidden): Buffer {
  const words = new Uint32Array(madeUpStates(ids, layerIds, hidden).buffer);
  return Buffer.from(Uint16Array.from(words, (word) => (word + 0x7fff + ((word >>> 16) & 1)) >>> 16).buffer);
}

function stored(asked: Omit<ExtractRequest, "type" | "id">, index: number): Buffer {
  const { offset, ids } = asked.samples[index]!;
  return readFileSync(asked.file).subarray(offset, offset + ids.length * TAPS.length * FACTS.hidden * 2);
}

const safetensorsIn = (folder: string) => readdirSync(folder).filter((name) => name.endsWith(".safetensors"));

async function rejection(promise: Promise<unknown>): Promise<Error> {
  return promise.then(
    () => {
      throw new Error("expected it to be refused");
    },
    (error: Error) => error,
  );
}

const conformanceFolder = mkdtempSync(join(tmpdir(), "forebay-vllm-conformance-"));
let conformanceServer: FakeVllm | null = null;
afterAll(async () => {
  await conformanceServer?.stop();
  rmSync(conformanceFolder, { recursive: true, force: true });
});

describeEngine("vllm on a server that has random-qwen3's golden states", async () => {
  conformanceServer = await FakeVllm.start({
    model: QWEN3,
    served: "random-qwen3",
    // As a person might have asked for them.
    layerIds: [6, 1, 5, 3],
    folder: conformanceFolder,
    states: goldenOrMadeUp(),
  });
  const config = JSON.parse(readFileSync(join(QWEN3, "config.json"), "utf8"));
  return {
    command: await commandFor({ url: conformanceServer.url }),
    model: QWEN3,
    facts: {
      arch: "Qwen3ForCausalLM",
      blocks: config.num_hidden_layers,
      hidden: config.hidden_size,
      vocab: config.vocab_size,
    },
    taps: [0, 2, 4, 5],
    printingEnv: {
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(
        'console.log("stray, early"); setInterval(() => process.stdout.write("stray\\n"), 5).unref()',
      )}`,
    },
    batchTolerance: 0,
    goldenTolerance: 2 ** -8,
  };
});

/** Golden sequences have their own states, by vLLM's numbering: id k+1 is block k. */
function goldenOrMadeUp(): typeof madeUpStates {
  const golden = new Map(readGolden("random-qwen3").map((one) => [one.ids.join(), one]));
  return (ids, layerIds, hidden) => {
    const floats = madeUpStates(ids, layerIds, hidden);
    const own = golden.get(ids.join());
    layerIds.forEach((layer, column) => {
      const slot = own?.blocks.indexOf(layer - 1) ?? -1;
      for (let token = 0; own && slot >= 0 && token < ids.length; token += 1) {
        const from = (token * own.blocks.length + slot) * hidden;
        floats.set(own.hidden.subarray(from, from + hidden), (token * layerIds.length + column) * hidden);
      }
    });
    return floats;
  };
}

describe("what a good server gives", () => {
  test("a recorded file's states are in the pack as they were, and both its files are gone", async () => {
    const fake = await startFake();
    const engine = await loadedEngine(fake);
    const response = readJson("completions_ids_requested_6_3_1.json");
    const name = basename(response.kv_transfer_params.hidden_states_path);
    const file = readFileSync(join(FIXTURES, "connector", name));
    fake.fault = { kind: "recorded", response, file };
    const ids: number[] = response.choices[0].prompt_token_ids;
    const asked = request([ids]);
    const answer = await engine.extract(asked);
    const { startByte, endByte } = parseHeader(file, name, file.length).tensors.get("hidden_states")!;
    const states = file.subarray(startByte, endByte);
    expect(stored(asked, 0).equals(states)).toBe(true);
    expect(answer.samples).toMatchObject([
      { row: 0, tokens: 8, finite: true, constant: false, crc32c: crc32c(states) },
    ]);
    expect(readdirSync(fake.folder)).toEqual([]);
  });

  test("one prompt a request, at temperature 0, many open at once, one token, ids asked for", async () => {
    const fake = await startFake();
    const engine = await loadedEngine(fake);
    const prompts = Array.from({ length: 60 }, (_, i) => idsOf(1 + (i % 50), i));
    const asked = request(prompts);
    const answer = await engine.extract(asked);
    expect(answer.failed).toEqual([]);
    for (const [i, ids] of prompts.entries()) expect(stored(asked, i).equals(expectedBytes(ids))).toBe(true);
    expect(fake.openMax).toBeGreaterThan(10);
    expect(fake.requests.every((body) => body.prompt.every((id) => typeof id === "number"))).toBe(true);
    expect(fake.requests[0]).toMatchObject({
      max_tokens: 1,
      temperature: 0,
      return_token_ids: true,
      model: "vllm",
    });
    expect(readdirSync(fake.folder)).toEqual([]);
  });

  test("open prompts keep within the tokens that were asked for", async () => {
    const fake = await startFake();
    const engine = await loadedEngine(fake, loadOf({ options: { ...QUICK, forward_tokens: 40 } }));
    expect(engine.loaded).toMatchObject({ slots: { tokens: 80 }, forward_tokens: 40 });
    const answer = await engine.extract(request(Array.from({ length: 12 }, (_, i) => idsOf(30, i))));
    expect(answer.samples).toHaveLength(12);
    expect(fake.openMax).toBeLessThanOrEqual(2);
  });

  test.each(["late", "locked-while-writing"])(
    "a file that is %s is read when it is whole, not before",
    async (kind) => {
      const fake = await startFake();
      const engine = await loadedEngine(fake, loadOf({ options: { ...QUICK, file_wait_ms: 20_000 } }));
      fake.fault = { kind };
      const prompts = [idsOf(9, 1), idsOf(30, 2)];
      const asked = request(prompts);
      const answer = await engine.extract(asked);
      expect(answer.failed).toEqual([]);
      for (const [i, ids] of prompts.entries())
        expect(stored(asked, i).equals(expectedBytes(ids))).toBe(true);
    },
  );

  test.each([
    ["F32", "float32"],
    ["F16", "float16"],
  ] as const)("states in %s become bf16, and the model's dtype is told", async (dtype, told) => {
    const fake = await startFake({ dtype });
    const engine = await loadedEngine(fake);
    expect(engine.loaded!.dtype).toBe(told);
    const ids = idsOf(12, 3);
    const asked = request([ids]);
    await engine.extract(asked);
    const exact = expectedBytes(ids);
    const found = stored(asked, 0);
    if (dtype === "F32") expect(found.equals(exact)).toBe(true);
    let worst = 0;
    for (let i = 0; i < exact.length; i += 2) {
      worst = Math.max(
        worst,
        Math.abs(bf16At(found, i) - bf16At(exact, i)) / Math.max(0.01, Math.abs(bf16At(exact, i))),
      );
    }
    expect(worst).toBeLessThanOrEqual(2 ** -7);
  });

  test("the longest prompt is one token below max_model_len; a longer one fails by name without being sent", async () => {
    const fake = await startFake({ maxModelLen: 512 });
    const engine = await loadedEngine(fake);
    expect(engine.loaded!.positions).toBe(511);
    const sent = fake.requests.length;
    const answer = await engine.extract(request([idsOf(511, 1), idsOf(512, 2)]));
    expect(answer.samples.map(({ row }) => row)).toEqual([0]);
    expect(answer.failed[0]!.message).toMatch(/at most 511 tokens.*found 512.*--max-model-len/);
    expect(fake.requests.length).toBe(sent + 1);
  });

  test("a proxy that is busy once is asked again", async () => {
    const fake = await startFake();
    const engine = await loadedEngine(fake);
    fake.fault = { kind: "busy-once" };
    expect((await engine.extract(request([idsOf(5, 1)]))).failed).toEqual([]);
  });

  test("files that a dead child and dropped requests left are swept; other people's stay", async () => {
    const fake = await startFake();
    const first = await startEngine({ url: fake.url });
    await first.load(loadOf());
    fake.fault = { kind: "hangs" };
    const dropped = first.extract(request([idsOf(5, 1)])).catch(() => "dropped");
    while (fake.requests.length < 3) await new Promise((resolve) => setTimeout(resolve, 5));
    const { request_id: requestId } = fake.requests.at(-1)!;
    await first.kill();
    await dropped;
    // The server finishes what nobody waits for.
    const orphan = join(fake.folder, `cmpl-${requestId}-0-abcd1234.safetensors`);
    const foreign = join(fake.folder, "cmpl-0123456789abcdef-0-abcd1234.safetensors");
    for (const path of [orphan, `${orphan}.lock`, foreign]) writeFileSync(path, "x");
    fake.fault = null;
    // At once when the next one loads, and every while as long as it lives.
    const second = await loadedEngine(fake, loadOf({ options: { ...QUICK, sweep_ms: 50 } }));
    expect(readdirSync(fake.folder)).toEqual([basename(foreign)]);
    writeFileSync(orphan, "x");
    await expect.poll(() => readdirSync(fake.folder)).toEqual([basename(foreign)]);
    await second.shutdown();
  });

  test("a small folder is never overfilled, and what does not fit into it at all fails with what to do", async () => {
    const disk = smallDisk(join(directory, "small"), "256k");
    onTestFinished(() => disk.remove());
    const fake = await startFake({ folder: join(disk.path, "hs") });
    const engine = await loadedEngine(fake);
    const prompts = Array.from({ length: 8 }, (_, i) => idsOf(60, i));
    const answer = await engine.extract(request([...prompts, idsOf(200, 9)]));
    expect(answer.samples).toHaveLength(8);
    expect(answer.failed).toMatchObject([{ row: 8, kind: "io", errno: null, named: true }]);
    expect(answer.failed[0]!.message).toMatch(/the states take 3\d{5} bytes.* has \d+ free.*--shm-size=8g/);
    // Two files of 96 KB, where a large folder would have been given all at once.
    expect(fake.openMax).toBe(2);
  });

  test("an engine that shares the folder's room with others counts on its part of it only", async () => {
    const fake = await startFake();
    const free = statfsSync(fake.folder);
    const bytes = free.bavail * free.bsize;
    // One file of these prompts fits into its part, two do not.
    const sharers = Math.ceil(bytes / (1.5 * 30 * TAPS.length * FACTS.hidden * 2));
    const engine = await loadedEngine(fake, loadOf({ options: { ...QUICK, sharers } }));
    const answer = await engine.extract(request(Array.from({ length: 6 }, (_, i) => idsOf(30, i))));
    expect(answer.samples).toHaveLength(6);
    expect(fake.openMax).toBe(1);
  });
});

describe("a server that is not the right one is refused when the engine loads", () => {
  test.each([
    ["has its connector off", { kind: "connector-off" }, /connector off.*--serve/],
    [
      "was started with other layers",
      { kind: "other-layers" },
      /expected states of 3 taps, found 4.*eagle_aux_hidden_state_layer_ids/,
    ],
    [
      "runs a model of another width",
      { kind: "other-width" },
      /expected hidden 256, found 512: the server runs another model/,
    ],
    [
      "has chunked prefill on",
      { kind: "chunked-prefill" },
      /expected states of 40 tokens, found 16.*--no-enable-chunked-prefill/,
    ],
    [
      "has prefix caching on",
      { kind: "prefix-cache" },
      /expected states of 40 tokens, found 24.*--no-enable-prefix-caching/,
    ],
    ["gives zeros", { kind: "zeros" }, /block 0 are all zero.*hybrid/],
    ["gives one value", { kind: "constant" }, /all one value/],
    ["gives what is not finite", { kind: "nan" }, /not finite/],
    ["does not tell its ids", { kind: "no-ids" }, /vLLM 0.22 or newer/],
    ["changes the ids", { kind: "other-ids-in-answer" }, /expected an answer for id 11 at 0, found 12/],
    ["writes states in 8 bits", { kind: "f8" }, /expected states in BF16, F16 or F32, found F8_E4M3/],
    [
      "answers with a page",
      { kind: "reply", status: 200, contentType: "text/html", body: "<html>hello</html>" },
      /expected vLLM's answer, found text\/html "<html>hello<\/html>"/,
    ],
  ])("it %s", async (_, fault, expected) => {
    const fake = await startFake();
    fake.fault = fault;
    const engine = await startEngine({ url: fake.url });
    const error = await rejection(engine.load(loadOf()));
    expect(error).toMatchObject({ kind: "bad-request", retry: "no" });
    expect(error.message).toMatch(expected);
    await engine.exited;
    expect(safetensorsIn(fake.folder)).toEqual([]);
  });

  test("it serves another model, another program, an old version, in another dtype", async () => {
    const cases: [Partial<FakeVllm>, ReturnType<typeof loadOf> & { dtype?: string }, RegExp][] = [
      [
        { served: "other-model", model: "/hs-root/other" },
        loadOf(),
        /serves other-model, expected vllm: .*--served-model-name vllm/,
      ],
      [
        { owner: "llamacpp" },
        loadOf(),
        /expected a vLLM server .* found one with models owned by "llamacpp"/,
      ],
      [{ version: "0.21.3" }, loadOf(), /expected vLLM 0.22 or newer, found 0.21.3/],
      [
        {},
        { ...loadOf(), dtype: "float32" as never },
        /expected a server that computes in float32, found states in bfloat16/,
      ],
    ];
    for (const [change, load, expected] of cases) {
      const fake = await startFake();
      Object.assign(fake, change);
      const error = await rejection((await startEngine({ url: fake.url })).load(load));
      expect(error).toMatchObject({ kind: "bad-request" });
      expect(error.message).toMatch(expected);
    }
  });

  test("a web server that is no vLLM, and one whose folder is on another machine", async () => {
    const web = createServer((_, response) => {
      response.writeHead(404, { "content-type": "text/html" });
      response.end("<html><h1>404 Not Found</h1></html>");
    });
    await new Promise<void>((resolve) => web.listen(0, "127.0.0.1", resolve));
    onTestFinished(() => void web.close());
    const { port } = web.address() as { port: number };
    const url = `http://127.0.0.1:${port}`;
    const page = await rejection((await startEngine({ url })).load(loadOf()));
    expect(page.message).toMatch(/GET \/health of .*: 404: text\/html "<html>.*is this a vLLM server\?/);

    const fake = await startFake();
    const response = readJson("completions_temperature0.json").response;
    response.choices[0].prompt_token_ids = Array.from({ length: 40 }, (_, i) => (i * 7_919 + 11) % 2048);
    fake.fault = { kind: "reply", status: 200, body: response };
    const elsewhere = await rejection((await startEngine({ url: fake.url })).load(loadOf()));
    expect(elsewhere.message).toMatch(/writes into \/hs-root\/hs, which is not on this machine/);
  });

  test("nobody listens there: it says so, and may be tried again", async () => {
    const fake = await startFake();
    await fake.stop();
    const error = await rejection((await startEngine({ url: fake.url })).load(loadOf()));
    expect(error).toMatchObject({ kind: "crash", retry: "restart" });
    expect(error.message).toMatch(/no answer from the vLLM server at .*ECONNREFUSED/);
  });
});

describe("what goes wrong in a run fails its rows with a sentence, and nothing wrong is answered for", () => {
  test.each([
    ["never comes", { kind: "never" }, "io", /still not there after 0.4 s/],
    ["stays short", { kind: "short" }, "io", /bytes, expected \d+.*folder full/],
    ["is longer than its header says", { kind: "too-long" }, "io", /its header describes/],
    ["is no safetensors", { kind: "garbage" }, "io", /not what the connector writes/],
    ["cannot be read", { kind: "unreadable" }, "io", /cannot be read: .*ELOOP/],
    ["stays locked", { kind: "locked-for-ever" }, "io", /stayed locked/],
    [
      "has other ids",
      { kind: "other-ids-in-file" },
      "bad-request",
      /states are of other tokens: expected id \d+ at 0/,
    ],
    ["has another width", { kind: "other-width" }, "bad-request", /expected hidden 256, found 512/],
    ["has other layers", { kind: "other-layers" }, "bad-request", /expected states of 3 taps, found 4/],
    [
      "has fewer states than tokens",
      { kind: "chunked-prefill" },
      "bad-request",
      /expected states of 20 tokens, found 16/,
    ],
  ])("a file that %s", async (_, fault, kind, expected) => {
    const fake = await startFake();
    const engine = await loadedEngine(fake);
    fake.fault = fault;
    const asked = request([idsOf(20, 1), idsOf(21, 2)]);
    const answer = await engine.extract(asked);
    expect(answer.samples).toEqual([]);
    expect(answer.failed).toMatchObject([
      // Without errno: none of it is the trouble of the spool's disk.
      { row: 0, kind, errno: null, named: true, retry: "no" },
      { row: 1, kind, errno: null, named: true, retry: "no" },
    ]);
    expect(answer.failed[0]!.message).toMatch(expected);
    // The pack's file was not touched, and the engine goes on when the server is well again.
    expect(readFileSync(asked.file).every((byte) => byte === 0xa5)).toBe(true);
    fake.fault = null;
    expect((await engine.extract(request([idsOf(20, 3)]))).failed).toEqual([]);
    await engine.shutdown();
    expect(safetensorsIn(fake.folder)).toEqual([]);
  });

  test.each(["zeros", "constant", "nan"])(
    "states of %s are told as such, for the supervisor to refuse",
    async (kind) => {
      const fake = await startFake();
      const engine = await loadedEngine(fake);
      fake.fault = { kind };
      const { samples } = await engine.extract(request([idsOf(20, 1)]));
      if (kind === "nan") expect(samples[0]!.finite).toBe(false);
      else expect(samples[0]!.constant).toBe(true);
      if (kind === "zeros") expect(samples[0]!.stats.map(({ absmax }) => absmax)).toEqual([0, 0, 0]);
    },
  );

  test.each([
    ["dies after its answer", { kind: "dead-engine" }, /died before it wrote/],
    ["drops the connection", { kind: "drops" }, /no answer from the vLLM server/],
    [
      "says 500 in HTML",
      { kind: "reply", status: 500, contentType: "text/html", body: "<html>Internal Server Error</html>" },
      /500: text\/html/,
    ],
  ])("a server that %s ends the child, which is started anew", async (_, fault, expected) => {
    const fake = await startFake();
    const engine = await loadedEngine(fake, loadOf({ options: { ...QUICK, file_wait_ms: 20_000 } }));
    fake.fault = fault;
    const error = await rejection(engine.extract(request([idsOf(20, 1), idsOf(30, 2)])));
    expect(error).toMatchObject({ kind: "crash", retry: "restart", rows: [] });
    expect(error.message).toMatch(expected);
    // A sentence, not where in our code it was found.
    expect(error.message).not.toMatch(/ at .*\.js:\d+/);
    expect((await engine.exited).code).toBe(70);
  });

  const recorded = readdirSync(FIXTURES).filter((name) => name.startsWith("err_"));
  test.each(recorded)("the recorded answer %s", async (name) => {
    const { status, response } = readJson(name);
    const fake = await startFake();
    const engine = await loadedEngine(fake);
    fake.fault = { kind: "reply", status, body: response };
    const asked = request([idsOf(20, 1)]);
    const told = (response.error?.message ?? response.detail).slice(0, 60).replaceAll("\n", "");
    if (status >= 500) {
      const error = await rejection(engine.extract(asked));
      expect(error).toMatchObject({ kind: "crash", retry: "restart" });
      expect(error.message).toContain(told);
      return;
    }
    const answer = await engine.extract(asked);
    expect(answer.failed).toMatchObject([{ row: 0, kind: "bad-request", retry: "no" }]);
    expect(answer.failed[0]!.message.replaceAll("\n", "")).toContain(told);
    expect(answer.failed[0]!.message).toContain(`${status}: `);
    fake.fault = null;
    expect((await engine.extract(request([idsOf(20, 3)]))).failed).toEqual([]);
  });

  test.each([
    ["completions_no_return_token_ids.json", /did not tell which ids/],
    ["completions_two_prompts.json", /expected vLLM's answer/],
    ["kv_include_output.json", /expected states of 4 tokens, found 8/],
    ["completions_ok.json", /expected states of 3 taps, found 4/],
  ])("the recorded answer %s, which is another request's", async (name, expected) => {
    // Its server had four layers.
    const four = name === "kv_include_output.json";
    const { request: sent, response } = readJson(name);
    const path = join(FIXTURES, "connector", basename(response.kv_transfer_params.hidden_states_path));
    const fake = await startFake(four ? { layerIds: [1, 2, 4, 6] } : {});
    const engine = await loadedEngine(fake, loadOf(four ? { taps: [0, 1, 3, 5] } : {}));
    fake.fault = { kind: "recorded", response, file: existsSync(path) ? readFileSync(path) : null };
    const { failed, samples } = await engine.extract(request([sent.body.prompt.flat()], four ? 4 : 3));
    expect(samples).toEqual([]);
    expect(failed[0]!.message).toMatch(expected);
  });
});

test("a server that answers and writes no files is stopped, its rows done by the other; the disk is not blamed", async () => {
  const [well, wedged] = [await startFake(), await startFake()];
  const outcomes: BatchOutcome[] = [];
  const todo = [0, 1, 2, 3].map((batch) => {
    const { file, samples } = request([0, 1, 2, 3].map((i) => idsOf(20 + i, 4 * batch + i)));
    const rows = samples.map((sample, i) => ({ ...sample, row: 4 * batch + i }));
    return { batch, attempt: 1, file, samples: rows };
  });
  const scratchDirectory = mkdtempSync(join(directory, "scratch-"));
  const engines = await Promise.all(
    [well, wedged].map(async ({ url }, shard) => {
      const command = await commandFor({ url });
      return { label: `vllm-${shard}`, shard, command, load: loadOf() };
    }),
  );
  const fleet = new Fleet({
    engines,
    shape: { taps: TAPS.length, hidden: FACTS.hidden },
    log: silentLog,
    stderrDirectory: null,
    scratchDirectory,
    skipsMax: 0,
    restart: { baseMs: 1, capMs: 2 },
    next: async (engine) => {
      // The second one gets its batches while it is well enough to have loaded.
      if (engine === "vllm-0") while (wedged.requests.length < 4) await new Promise((r) => setTimeout(r, 10));
      else wedged.fault = { kind: "never" };
      return todo.shift() ?? null;
    },
    newAttempt: async (work) => {
      const file = `${work.file}.next`;
      writeFileSync(file, Buffer.alloc(statSync(work.file).size));
      return { ...work, attempt: work.attempt + 1, file };
    },
    done: (outcome) => void outcomes.push(outcome),
  });
  await fleet.run();
  expect(outcomes.map((outcome) => outcome.kind === "states" && outcome.samples.length)).toEqual([
    4, 4, 4, 4,
  ]);
  expect(fleet.status()[1]!.last_error).toMatch(/failed 8 rows in a row: .*still not there/);
});

describe("a path that the server names", () => {
  test.each(["relative.safetensors", "/etc/passwd", "/tmp/../etc/x.safetensors"])(
    "%s is not read",
    async (path) => {
      const fake = await startFake();
      const engine = await loadedEngine(fake);
      const ids = idsOf(4, 1);
      const choices = [{ prompt_token_ids: ids, token_ids: [1] }];
      fake.fault = {
        kind: "reply",
        status: 200,
        body: { choices, kv_transfer_params: { hidden_states_path: path } },
      };
      const { failed } = await engine.extract(request([ids]));
      expect(failed[0]!.message).toMatch(/expected the path of a connector's file/);
    },
  );

  test("a file that is not of our ids and not of our name is left where it is", async () => {
    const fake = await startFake();
    const engine = await loadedEngine(fake);
    const foreign = join(fake.folder, "weights.safetensors");
    writeFileSync(foreign, readFileSync(join(QWEN3, "model.safetensors")));
    const ids = idsOf(4, 1);
    const choices = [{ prompt_token_ids: ids, token_ids: [1] }];
    fake.fault = {
      kind: "reply",
      status: 200,
      body: { choices, kv_transfer_params: { hidden_states_path: foreign } },
    };
    const { failed } = await engine.extract(request([ids]));
    expect(failed[0]!.message).toMatch(/expected the tensors hidden_states and token_ids/);
    expect(existsSync(foreign)).toBe(true);
  });
});

describe("greedy, the one check that a server allows", () => {
  const [golden] = readGolden("random-qwen3");

  async function check(options: { layerOfLast?: (floats: Float32Array) => void } = {}): Promise<CheckResult> {
    const ids = golden!.ids;
    const states = goldenOrMadeUp();
    const fake = await startFake({
      model: QWEN3,
      served: "random-qwen3",
      layerIds: [1, 3, 6],
      states: (asked, layers, hidden) => {
        const floats = states(asked, layers, hidden);
        options.layerOfLast?.(floats);
        return floats;
      },
      nextToken: () => nextToken(golden!),
    });
    const engine = await loadedEngine(fake, loadOf({ model: QWEN3 }));
    expect(engine.loaded!.checks).toEqual(["greedy"]);
    const asked = request([ids], 3, engine.loaded!.hidden);
    expect((await engine.extract(asked)).failed).toEqual([]);
    const { results } = await engine.check({ kinds: ["greedy"], file: asked.file, samples: asked.samples });
    expect(safetensorsIn(fake.folder)).toEqual([]);
    return results[0]!;
  }

  test("the stored last state chooses the token that the server goes on with", async () => {
    expect(await check()).toMatchObject({ ok: true, kind: "greedy", tap: null, measured: 0 });
  });

  test("states of another block do not", async () => {
    const swap = (floats: Float32Array) => {
      const hidden = golden!.hiddenSize;
      for (let at = 0; at < floats.length; at += 3 * hidden)
        floats.copyWithin(at + 2 * hidden, at, at + hidden);
    };
    expect(await check({ layerOfLast: swap })).toMatchObject({ ok: false, tap: 5 });
  });

  test("it is not offered where the last block is not tapped", async () => {
    const fake = await startFake({ model: QWEN3, served: "random-qwen3", layerIds: [1, 3] });
    const engine = await loadedEngine(fake, loadOf({ model: QWEN3, taps: [0, 2] }));
    expect(engine.loaded!.checks).toEqual([]);
  });
});

/** argmax of lm_head(norm(last golden state)), in plain loops and in f64. */
function nextToken({ hidden, hiddenSize, blocks, ids }: ReturnType<typeof readGolden>[number]): number {
  const config = JSON.parse(readFileSync(join(QWEN3, "config.json"), "utf8"));
  const file = readFileSync(join(QWEN3, "model.safetensors"));
  const { tensors } = parseHeader(file, QWEN3, file.length);
  const floats = (name: string) => {
    const { startByte, endByte, dtype } = tensors.get(name)!;
    const bytes = file.subarray(startByte, endByte);
    const size = dtype === "F32" ? 4 : 2;
    return Array.from({ length: bytes.length / size }, (_, i) =>
      size === 4 ? bytes.readFloatLE(4 * i) : bf16At(bytes, 2 * i),
    );
  };
  const at = (ids.length - 1) * blocks.length + blocks.indexOf(5);
  const state = Array.from(hidden.subarray(at * hiddenSize, (at + 1) * hiddenSize));
  const rms = Math.sqrt(state.reduce((sum, x) => sum + x * x, 0) / hiddenSize + config.rms_norm_eps);
  const scale = floats("model.norm.weight");
  const head = floats(config.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  let best = { token: -1, logit: Number.NEGATIVE_INFINITY };
  for (let token = 0; token < config.vocab_size; token += 1) {
    const logit = state.reduce((sum, x, i) => sum + (x / rms) * scale[i]! * head[token * hiddenSize + i]!, 0);
    if (logit > best.logit) best = { token, logit };
  }
  return best.token;
}

describe("--serve starts a server of its own", () => {
  const program = fileURLToPath(new URL("./support/vllm", import.meta.url));
  const notes = () => join(mkdtempSync(join(directory, "notes-")), "notes.json");

  test("with translated ids, a port and a folder of its own; and ends it, the folder too, however the child ends", async () => {
    for (const way of ["shutdown", "kill"] as const) {
      const file = notes();
      const target = { program, extra: ["--max-model-len", "512"] };
      const engine = await startEngine(target, { FAKE_VLLM_NOTES: file });
      await engine.load(loadOf({ model: FIXTURES }));
      const answer = await engine.extract(request([idsOf(7, 1)]));
      expect(answer.failed).toEqual([]);
      const { pid, argv, folder } = JSON.parse(readFileSync(file, "utf8"));
      expect(argv.join(" ")).toContain('"eagle_aux_hidden_state_layer_ids":[1,3,6]');
      expect(argv.join(" ")).toContain(
        "--no-enable-chunked-prefill --no-enable-prefix-caching --max-model-len 512",
      );
      expect(statSync(folder).mode & 0o777).toBe(0o700);
      await engine[way]();
      while (isAlive(pid) || existsSync(folder)) await new Promise((resolve) => setTimeout(resolve, 20));
    }
  });

  test("a server that ends while it starts, and one that is not there, are told", async () => {
    const failing = await startEngine({ program, extra: ["--fail"] });
    expect((await rejection(failing.load(loadOf()))).message).toMatch(
      /vLLM ended with code 1: vllm: this fake was told to fail \(before it was ready\)/,
    );
    const absent = await startEngine({ program: "/nowhere/vllm", extra: [] });
    expect(await rejection(absent.load(loadOf()))).toMatchObject({ kind: "bad-request" });
  });

  test("taps beyond the blocks never reach a server, whose engine would die of them", async () => {
    const file = notes();
    const engine = await startEngine({ program, extra: [] }, { FAKE_VLLM_NOTES: file });
    const error = await rejection(engine.load(loadOf({ taps: [0, 6] })));
    expect(error.message).toMatch(/tap 6 is out of range: the model has 6 blocks/);
    expect(existsSync(file)).toBe(false);
  });
});

describe("forebay run --engine vllm", () => {
  test("a run over a server ends with every row in verified packs; a second server's death does not stop it", async () => {
    const model = join(ROOT, "fixtures/models/tiny-qwen3");
    const options = { model, served: "tiny-qwen3", layerIds: [2, 5] };
    const [first, second] = [await startFake(options), await startFake(options)];
    const machine = new Machine();
    onTestFinished(() => machine.remove());
    const address = `file:${machine.path("store")}/run`;
    const args = [
      "run",
      address,
      "--model",
      model,
      "--dataset",
      join(ROOT, "fixtures/datasets/plain"),
      "--taps",
      "1,4",
    ];
    const running = machine.start([
      ...[...args, "--engine", "vllm", "--vllm", first.url, "--vllm", second.url, "--pack-bytes", "64KiB"],
      ...["--spool-bytes", "64MiB", "--disk-floor", "1MiB", "--port", "0", "--run-dir", machine.path("dir")],
    ]);
    while (second.requests.length < 4 && running.child.exitCode === null) {
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
    await second.stop();
    const ended = await running.ended;
    expect(ended.code, ended.stderr).toBe(0);
    const verified = await machine.run(["verify", address, "--json"]);
    expect(verified.code, verified.stdout + verified.stderr).toBe(0);
    const events = eventsOf(machine.path("dir"));
    expect(events.some(({ event }) => event === "engine.exit")).toBe(true);
    // The last block is not tapped, so nothing could be put to the server; that is said, not called a pass.
    expect(events.find(({ event }) => event === "gate.nothing-checked")).toMatchObject({ level: "warn" });
    expect(events.some(({ event }) => event === "gate.checked")).toBe(false);
    const { gate } = JSON.parse(readFileSync(join(machine.path("dir"), "status.json"), "utf8"));
    expect(gate).toMatchObject({ state: "skipped", report: expect.stringMatching(/nothing was checked/) });
    expect(readdirSync(first.folder).filter((name) => !name.endsWith(".lock"))).toEqual([]);
  });

  test("a check that could prove nothing is not ok: exit 78, in words and in JSON", async () => {
    const fake = await startFake({ model: QWEN3, served: "random-qwen3", layerIds: [1, 3] });
    const machine = new Machine();
    onTestFinished(() => machine.remove());
    const args = ["check", "--model", QWEN3, "--taps", "0,2", "--engine", "vllm", "--vllm", fake.url];
    const [words, json] = [await machine.run(args), await machine.run([...args, "--json"])];
    expect(words.code, words.stderr).toBe(78);
    expect(words.stdout).toMatch(/nothing was checked.*--against/s);
    expect(words.stdout).toMatch(/NOT proven\n$/);
    expect(json.code).toBe(78);
    expect(JSON.parse(json.stdout)).toMatchObject({ ok: false, gate: "skipped", results: [] });
  });

  test("nobody listens: check and run say so at once, in a sentence with what to do", async () => {
    const fake = await startFake();
    await fake.stop();
    const machine = new Machine();
    onTestFinished(() => machine.remove());
    const common = ["--model", QWEN3, "--taps", "0,2", "--engine", "vllm", "--vllm", fake.url];
    const dataset = ["--dataset", join(ROOT, "fixtures/datasets/plain"), "--run-dir", machine.path("dir")];
    for (const args of [["check"], ["run", `file:${machine.path("store")}/run`, ...dataset]]) {
      const ended = await machine.run([...args, ...common]);
      expect(ended.code, ended.stderr).toBe(7);
      expect(ended.stderr).toMatch(/no answer from the vLLM server at .*ECONNREFUSED/);
      expect(ended.stderr).toMatch(/next: +start the server, correct --vllm/);
      expect(ended.stderr).not.toMatch(/no engine is left|restart/);
    }
  });

  test("neither --vllm nor --serve is a usage error that names both", async () => {
    const machine = new Machine();
    onTestFinished(() => machine.remove());
    const ended = await machine.run(["check", "--model", QWEN3, "--taps", "0,2", "--engine", "vllm"]);
    expect(ended.code).toBe(2);
    expect(ended.stderr).toMatch(/expected either --vllm or --serve, found neither/);
  });
});

function bf16At(bytes: Buffer, at: number): number {
  const word = Buffer.alloc(4);
  word.writeUInt16LE(bytes.readUInt16LE(at), 2);
  return word.readFloatLE(0);
}

// biome-ignore lint/suspicious/noExplicitAny: recordings of another program's JSON
function readJson(name: string): any {
  return JSON.parse(readFileSync(join(FIXTURES, name), "utf8"));
}
