import {
  cpSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  truncateSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeEach, describe, expect, it } from "vitest";
import { EXIT } from "../base/errors.ts";
import { fingerprintModel } from "./fingerprint.ts";
import { needTensor, openWeights } from "./weights.ts";

const models = new URL("../../fixtures/models/", import.meta.url).pathname;
const scratch = mkdtempSync(join(tmpdir(), "forebay-weights-"));
afterAll(() => rmSync(scratch, { recursive: true, force: true }));

const FIRST = "model-00001-of-00002.safetensors";
const SECOND = "model-00002-of-00002.safetensors";
const INDEX = "model.safetensors.index.json";
let copies = 0;
let dir = "";

beforeEach(() => {
  copies += 1;
  dir = join(scratch, `model-${copies}`);
  cpSync(join(models, "random-qwen3-sharded"), dir, { recursive: true });
});

it("finds every tensor of a sharded model at its bytes", () => {
  const weights = openWeights(dir);
  const tensor = needTensor(weights, "model.layers.0.self_attn.q_norm.weight", [16]);
  expect(weights.files).toEqual([join(dir, FIRST), join(dir, SECOND)]);
  expect(weights.bytes).toBe(statSync(join(dir, FIRST)).size + statSync(join(dir, SECOND)).size);
  expect(tensor).toMatchObject({ dtype: "BF16", shape: [16] });
  expect(tensor.endByte - tensor.startByte).toBe(32);
});

it("a tensor of another shape than config.json wants is refused by name", () => {
  expect(() => needTensor(openWeights(dir), "model.norm.weight", [65])).toThrow(
    'tensor "model.norm.weight": expected the shape [65], found [64]',
  );
  expect(() => needTensor(openWeights(dir), "lm_head.weight", [1])).toThrow("no such tensor");
});

describe("weights that cannot be trusted are refused, naming the file", () => {
  it("a shard that is missing", () => {
    rmSync(join(dir, SECOND));
    expectRefusal(EXIT.configuration, SECOND, "is missing");
  });

  it("a shard whose symlink leads nowhere", () => {
    rmSync(join(dir, SECOND));
    symlinkSync("../blobs/gone", join(dir, SECOND));
    expectRefusal(EXIT.configuration, SECOND, "is missing");
  });

  it("a shard cut in its data", () => {
    truncateSync(join(dir, SECOND), statSync(join(dir, SECOND)).size - 1);
    expectRefusal(EXIT.integrity, SECOND, "bytes, but the file has");
  });

  it("a shard cut in its header, or to nothing", () => {
    truncateSync(join(dir, FIRST), 100);
    expectRefusal(EXIT.integrity, FIRST, "the header claims");
    truncateSync(join(dir, FIRST), 0);
    expectRefusal(EXIT.integrity, FIRST, "expected at least 8 bytes, found 0");
  });

  it("a header length that would not fit in memory", () => {
    spoil(FIRST, (bytes) => bytes.writeBigUInt64LE(2n ** 63n, 0));
    expectRefusal(EXIT.integrity, FIRST, "the header claims");
  });

  it.each([
    ["offsets that overlap", '"data_offsets":[0,', '"data_offsets":[2,'],
    ["a dtype that does not exist", '"BF16"', '"BF61"'],
    ["a shape of another size", '"shape":[64]', '"shape":[63]'],
  ])("a header with %s", (_, from, to) => {
    spoil(FIRST, (bytes) => {
      const at = bytes.indexOf(from);
      expect(at).toBeGreaterThan(0);
      bytes.write(to, at);
    });
    expectRefusal(EXIT.integrity, FIRST, "tensor");
  });

  it("a tensor that is not in the shard of the index", () => {
    rewriteIndex((map) => ({
      ...map,
      "model.norm.weight": map["model.norm.weight"] === FIRST ? SECOND : FIRST,
    }));
    expect(() => openWeights(dir)).toThrow('puts the tensor "model.norm.weight" here');
  });

  it.each(["../../etc/passwd.safetensors", "/etc/x.safetensors", "model.bin"])(
    "an index that names %s",
    (name) => {
      rewriteIndex((map) => ({ ...map, "model.norm.weight": name }));
      expectRefusal(EXIT.integrity, INDEX, "weight_map");
    },
  );

  it("weights that come only as a pickle", () => {
    const pickled = join(scratch, "pickled");
    mkdirSync(pickled);
    writeFileSync(join(pickled, "pytorch_model.bin"), "");
    expect(() => openWeights(pickled)).toThrow("a pickle (pytorch_model.bin), which can run code");
  });

  it("a directory without weights", () => {
    expect(() => openWeights(join(scratch, "nowhere"))).toThrow("there is neither model.safetensors nor");
  });
});

describe("the fingerprint", () => {
  it("changes with one bit of any weight, and with a file's name", async () => {
    const before = await fingerprintModel(dir, { cacheFile: null });
    spoil(SECOND, (bytes) => {
      bytes[bytes.length - 1]! ^= 1;
    });
    const after = await fingerprintModel(dir, { cacheFile: null });
    expect(after.weights).not.toBe(before.weights);
    expect(after.config).toBe(before.config);
    expect(after.files[0]).toEqual(before.files[0]);
    expect(before.files.map((file) => file.name)).toEqual([FIRST, SECOND]);
  });

  it("reads each byte once: the second time comes from the cache, until a file changes", async () => {
    const cacheFile = join(scratch, `cache-${copies}.json`);
    const first = await fingerprintModel(dir, { cacheFile });
    let reads = 0;
    const onProgress = () => {
      reads += 1;
    };
    expect(await fingerprintModel(dir, { cacheFile, onProgress })).toEqual(first);
    expect(reads).toBe(2);
    spoil(FIRST, (bytes) => {
      bytes[bytes.length - 1]! ^= 1;
    });
    utimesSync(join(dir, FIRST), 1, 1);
    expect((await fingerprintModel(dir, { cacheFile })).weights).not.toBe(first.weights);
  });

  it("a cache that is broken or cannot be written costs only time", async () => {
    const cacheFile = join(scratch, "broken.json");
    writeFileSync(cacheFile, '{"1:2:3:4": "no sha256"}');
    const first = await fingerprintModel(dir, { cacheFile });
    expect(await fingerprintModel(dir, { cacheFile: join(scratch, "no/such/folder/cache") })).toEqual(first);
    expect(JSON.parse(readFileSync(cacheFile, "utf8"))).not.toHaveProperty("1:2:3:4");
  });

  it("a blob of the Hugging Face cache is known by its name", async () => {
    const sha256 = "ab".repeat(32);
    cpSync(join(dir, FIRST), join(scratch, sha256));
    rmSync(join(dir, FIRST));
    symlinkSync(join(scratch, sha256), join(dir, FIRST));
    const { files } = await fingerprintModel(dir, { cacheFile: null });
    expect(files[0]).toMatchObject({ name: FIRST, sha256 });
  });
});

function expectRefusal(exit: number, file: string, message: string): void {
  expect(() => openWeights(dir)).toThrow(message);
  expect(() => openWeights(dir)).toThrow(expect.objectContaining({ exit, subject: join(dir, file) }));
}

function spoil(file: string, change: (bytes: Buffer) => void): void {
  const bytes = readFileSync(join(dir, file));
  change(bytes);
  writeFileSync(join(dir, file), bytes);
}

function rewriteIndex(change: (map: Record<string, string>) => Record<string, string>): void {
  const index = JSON.parse(readFileSync(join(dir, INDEX), "utf8"));
  writeFileSync(join(dir, INDEX), JSON.stringify({ ...index, weight_map: change(index.weight_map) }));
}
