import { closeSync, existsSync, fstatSync, openSync, readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { z } from "zod";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { type Dtype, headerLength, parseHeader, type SafetensorsHeader } from "../base/safetensors.ts";

/** Where one tensor of a model lies. */
export interface WeightTensor {
  name: string;
  /** Absolute or as `dir` was given; not resolved through symlinks. */
  file: string;
  dtype: Dtype;
  shape: number[];
  /** [startByte, endByte) in `file`. */
  startByte: number;
  endByte: number;
}

/** The safetensors files of one model directory, their headers read and checked, no weight touched. */
export interface ModelWeights {
  dir: string;
  /** Paths, in name order. */
  files: string[];
  tensors: Map<string, WeightTensor>;
  /** Size of all files. */
  bytes: number;
}

/** An index of a model of a thousand blocks with 256 experts each stays below. */
const INDEX_BYTES_MAX = 256 * 2 ** 20;

const SINGLE = "model.safetensors";
const INDEX = "model.safetensors.index.json";

/**
 * Reads the headers of `dir`/model.safetensors, or of every shard that its index names.
 * Throws (configuration) where a shard is missing or weights come only as pickles; (integrity) where a file is
 * cut or its header lies.
 */
export function openWeights(dir: string): ModelWeights {
  const weightMap = existsSync(join(dir, INDEX)) ? readIndex(join(dir, INDEX)) : null;
  if (!weightMap && !existsSync(join(dir, SINGLE))) throw noWeights(dir);
  const names = weightMap ? [...new Set(weightMap.values())].sort() : [SINGLE];
  const tensors = new Map<string, WeightTensor>();
  let bytes = 0;
  for (const name of names) {
    const file = join(dir, name);
    const header = readShard(file, names.length);
    bytes += header.fileBytes;
    for (const entry of header.tensors.values()) {
      if (!weightMap || weightMap.get(entry.name) === name) tensors.set(entry.name, { ...entry, file });
    }
  }
  for (const [tensor, name] of weightMap ?? []) {
    if (!tensors.has(tensor)) throw notInShard(tensor, join(dir, name));
  }
  return { dir, files: names.map((name) => join(dir, name)), tensors, bytes };
}

/**
 * The tensor `name`, of exactly `shape`.
 * Throws (configuration) where it is absent or has another shape: config.json and weights are not of one model.
 */
export function needTensor(weights: ModelWeights, name: string, shape: readonly number[]): WeightTensor {
  const tensor = weights.tensors.get(name);
  const found = tensor ? `[${tensor.shape}]` : "no such tensor";
  if (!tensor || found !== `[${shape}]`) {
    throw new RunError({
      op: "read weights",
      subject: weights.dir,
      message: `tensor "${name}": expected the shape [${shape}], found ${found}`,
      hint: "config.json and the weights are not of one model: fetch the model again",
      exit: EXIT.configuration,
    });
  }
  return tensor;
}

function readShard(file: string, shards: number): SafetensorsHeader {
  let fd: number;
  try {
    fd = openSync(file, "r");
  } catch (cause) {
    throw new RunError({
      op: "open weights",
      subject: file,
      message:
        errnoOf(cause) === "ENOENT"
          ? `one of the ${shards} shards that ${INDEX} names is missing`
          : "the file cannot be opened",
      hint: "fetch the model again; a broken symlink in a Hugging Face cache is a download that never ended",
      exit: EXIT.configuration,
      cause: errnoOf(cause) === "ENOENT" ? undefined : cause,
    });
  }
  try {
    const fileBytes = fstatSync(fd).size;
    const start = (bytes: number) => readExactlySync(fd, Buffer.alloc(bytes), { startByte: 0, path: file });
    // Checked against the file's size, so that a lying header cannot make the next line allocate.
    const length = headerLength(start(Math.min(8, fileBytes)), file, fileBytes);
    return parseHeader(start(8 + length), file, fileBytes);
  } finally {
    closeSync(fd);
  }
}

function readIndex(path: string): Map<string, string> {
  const shard = z.string().regex(/^[^/\\]+\.safetensors$/, "a *.safetensors file name without a folder");
  try {
    const text = readFileSync(path, "utf8");
    if (text.length > INDEX_BYTES_MAX) throw new Error(`it has over ${INDEX_BYTES_MAX} bytes`);
    const index = z.object({ weight_map: z.record(z.string(), shard) }).parse(JSON.parse(text));
    return new Map(Object.entries(index.weight_map));
  } catch (cause) {
    throw new RunError({
      op: "open weights",
      subject: path,
      message: "expected a JSON object whose weight_map gives each tensor's *.safetensors file",
      hint: "fetch the model again",
      exit: EXIT.integrity,
      cause,
    });
  }
}

function notInShard(tensor: string, file: string): RunError {
  return new RunError({
    op: "open weights",
    subject: file,
    message: `${INDEX} puts the tensor "${tensor}" here, but the file does not hold it`,
    hint: "the shards are of different downloads: fetch the model again",
    exit: EXIT.integrity,
  });
}

function noWeights(dir: string): RunError {
  const entries = existsSync(dir) ? readdirSync(dir) : [];
  const pickled = entries.find((name) => /\.(bin|pt|pth|ckpt)$/.test(name));
  const gguf = entries.find((name) => name.endsWith(".gguf"));
  const message = pickled
    ? `the weights come only as a pickle (${basename(pickled)}), which can run code when it is opened; only safetensors is read`
    : gguf
      ? `the weights come as ${gguf}; only safetensors is read`
      : `there is neither ${SINGLE} nor ${INDEX}`;
  return new RunError({
    op: "open weights",
    subject: dir,
    message,
    hint: pickled
      ? "save it again where you trust it: AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW)"
      : "--model names a Hugging Face model directory: config.json beside *.safetensors",
    exit: EXIT.configuration,
  });
}
