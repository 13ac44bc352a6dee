import { createHash } from "node:crypto";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { ListObjectsV2Command } from "@aws-sdk/client-s3";
import { parquetWriteFile } from "hyparquet-writer";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { smallDisk } from "./support/disks.ts";
import { type Ended, eventsOf, FIXTURES, freeze, Machine, type Running } from "./support/program.ts";
import { credentialEnv, freePorts, makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/**
 * Bad input of every kind, through the built program. Whatever it is, one helper (`refused`) asks for: what is wrong,
 * where, what is safe and what to do next; the exit code; and that neither store nor spool were touched.
 */

/** 384 ids, 6 blocks, 512 positions. */
const MODEL = join(FIXTURES, "models/random-qwen3");
const CLOCK = fileURLToPath(new URL("./support/clock-ahead.mjs", import.meta.url));

let machine: Machine;
beforeAll(() => {
  machine = new Machine();
});
beforeEach(() => {
  writeFileSync(machine.path("rows.jsonl"), rows([1, 2, 3], [4, 5, 6]));
});
afterAll(() => machine?.remove());

interface Expected {
  code: number;
  /** In the first line, after "cannot ...: ". */
  what: string | RegExp;
  where: string | RegExp;
  next: string | RegExp;
  /** Objects of the store before and after; default: the files below the machine's `store`. */
  store?: () => Promise<string[]> | string[];
  env?: Record<string, string>;
  /** Default: the machine's `spool`. */
  spool?: string;
}

/** Runs the program and holds all that a refusal owes a person against it. */
async function refused(args: string[], expected: Expected): Promise<Ended> {
  const store = expected.store ?? (() => listing(machine.path("store")));
  const spool = expected.spool ?? machine.path("spool");
  const before = { store: await store(), spool: listing(spool) };
  const ended = await machine.run(args, { env: expected.env });
  const shown = `${args.join(" ")}\n${ended.stderr}`;
  expect(ended.code, shown).toBe(expected.code);
  const said = /^forebay: cannot ([^:]+): ([\s\S]*?)\n {2}where: (.*)\n(?: {2}cause: .*\n)?/m.exec(
    ended.stderr,
  );
  expect(said, shown).not.toBeNull();
  expect(said![2], shown).toMatch(expected.what);
  expect(said![3], shown).toMatch(expected.where);
  expect(
    /^ {2}safe: +(\S.*)$/m.exec(ended.stderr)?.[1],
    `says nothing of what is safe: ${shown}`,
  ).toBeTruthy();
  expect(/^ {2}next: +(\S.*)$/m.exec(ended.stderr)?.[1] ?? "", shown).toMatch(expected.next);
  expect({ store: await store(), spool: listing(spool) }, shown).toEqual(before);
  return ended;
}

/** A run of this machine into its directory store, with other flags last. */
function run(flags: Record<string, string> = {}, address = "file:../store/bad"): string[] {
  const settings = {
    model: MODEL,
    dataset: machine.path("rows.jsonl"),
    taps: "1,3",
    spool: machine.path("spool"),
    "run-dir": machine.path("run"),
    "spool-bytes": "64MiB",
    "disk-floor": "1MiB",
    port: "0",
    progress: "quiet",
    ...flags,
  };
  return [
    "run",
    address,
    "--no-gate",
    ...Object.entries(settings).flatMap(([name, value]) => [`--${name}`, value]),
  ];
}

describe("a model", () => {
  const bytes = readFileSync(join(MODEL, "model.safetensors"));
  const headerBytes = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.toString("utf8", 8, 8 + headerBytes)) as Record<
    string,
    { data_offsets?: number[] }
  >;
  const data = bytes.subarray(8 + headerBytes);
  const names = Object.keys(header).filter((name) => name !== "__metadata__");
  names.sort((a, b) => header[a]!.data_offsets![0]! - header[b]!.data_offsets![0]!);

  /** The model in a directory of its own, with another header over the same data. */
  const lying = (edit: (copy: typeof header) => string | undefined) => {
    const copy = structuredClone(header);
    const text = Buffer.from(edit(copy) ?? JSON.stringify(copy));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    return modelWith({ "model.safetensors": Buffer.concat([length, text, data]) });
  };
  const shift = (copy: typeof header, by: number) => {
    const [start, end] = copy[names[1]!]!.data_offsets as [number, number];
    copy[names[1]!]!.data_offsets = [start + by, end + by];
  };

  test.each<[string, () => string, Omit<Expected, "where">]>([
    [
      "with a missing shard",
      () => {
        const model = copyModel("random-qwen3-sharded", ["model-00002-of-00002.safetensors"]);
        return model;
      },
      { code: 78, what: "one of the 2 shards", next: "fetch the model again" },
    ],
    [
      "with a shard that was cut",
      () => modelWith({ "model.safetensors": bytes.subarray(0, bytes.length - 1_000) }),
      { code: 9, what: /file/, next: "fetch it again" },
    ],
    [
      "whose header claims a huge length",
      () => {
        const huge = Buffer.from(bytes);
        huge.writeBigUInt64LE(2n ** 60n, 0);
        return modelWith({ "model.safetensors": huge });
      },
      { code: 9, what: /header/, next: "fetch it again" },
    ],
    [
      "whose tensors overlap",
      () => lying((copy) => void shift(copy, -64)),
      { code: 9, what: /overlap/, next: "fetch it again" },
    ],
    [
      "whose tensors leave a hole",
      () => lying((copy) => void shift(copy, 64)),
      { code: 9, what: /hole|overlap/, next: "fetch it again" },
    ],
    [
      "whose header names a tensor twice",
      () =>
        lying((copy) => {
          const first = `${JSON.stringify(names[0])}:${JSON.stringify(copy[names[0]!])}`;
          return JSON.stringify(copy).replace("{", `{${first},`);
        }),
      { code: 9, what: /twice|duplicate/, next: "fetch it again" },
    ],
    [
      "without weights",
      () => copyModel("random-qwen3", ["model.safetensors"]),
      { code: 78, what: "neither model.safetensors", next: "Hugging Face model directory" },
    ],
    [
      "of an unknown architecture",
      () =>
        modelWith({ "config.json": config({ architectures: ["NovelForCausalLM"], model_type: "novel" }) }),
      { code: 78, what: /NovelForCausalLM/, next: "--engine transformers" },
    ],
    [
      "whose config lacks a key",
      () => modelWith({ "config.json": config({ hidden_size: undefined }) }),
      { code: 78, what: /hidden_size/, next: "fetch the model again" },
    ],
    [
      "whose config is not JSON",
      () => modelWith({ "config.json": Buffer.from("{") }),
      { code: 78, what: /JSON/, next: "Hugging Face model directory" },
    ],
    [
      "that is not there",
      () => machine.path("no-model"),
      { code: 78, what: "no such directory", next: "Hugging Face model directory" },
    ],
  ])("%s", async (_, make, expected) => {
    const model = make();
    await refused(run({ model }), { ...expected, where: model });
  });

  test.each(["random-mistral", "random-gemma3", "random-qwen3_5"])("%s is refused by name", async (name) => {
    const model = join(FIXTURES, "models", name);
    const { architectures } = JSON.parse(readFileSync(join(model, "config.json"), "utf8"));
    const expected = { code: 78, what: architectures[0], where: model, next: "--engine transformers" };
    await refused(run({ model }), expected);
  });
});

describe("taps", () => {
  test.each([
    ["out of range", "1,6", "tap 6 is out of range: the model has 6 blocks"],
    ["unsorted", "3,1", /ascending and each once, found "3,1"/],
    ["doubled", "1,1", /ascending and each once, found "1,1"/],
    ["negative", "-1,3", /layer numbers such as 1,3,5.* found "-1,3"/],
    ["no numbers", "1,x", "x"],
  ])("that are %s", async (_, taps, what) => {
    const args = run().flatMap((word, i, all) =>
      word === "--taps" || all[i - 1] === "--taps" ? [] : [word],
    );
    await refused([...args, `--taps=${taps}`], {
      code: 2,
      what,
      where: "--taps",
      next: "--taps",
    });
  });
});

describe("a dataset", () => {
  const jsonl = (name: string, text: string) => () => {
    const path = machine.path(name);
    writeFileSync(path, text);
    return path;
  };
  const arrow =
    (name: string, change: (directory: string) => void, from = "plain") =>
    () => {
      const directory = machine.path(name);
      cpSync(join(FIXTURES, "datasets", from), directory, { recursive: true });
      makeWritable(directory);
      change(directory);
      return directory;
    };

  test.each<[string, () => string, Omit<Expected, "where"> & { where?: string }]>([
    [
      "that is not there",
      () => machine.path("no-data"),
      { code: 78, what: "no such file", next: "--dataset" },
    ],
    [
      "without state.json",
      arrow("stateless", (directory) => rmSync(join(directory, "state.json"))),
      { code: 78, what: /state\.json/, next: /save_to_disk/ },
    ],
    [
      "whose Arrow file was cut in the middle",
      arrow("cut", (directory) => {
        const file = join(directory, "data-00000-of-00001.arrow");
        writeFileSync(file, readFileSync(file).subarray(0, statSync(file).size >> 1));
      }),
      { code: 9, what: /cut|ends|bytes/, next: /copy|again|save/, where: "data-00000-of-00001.arrow" },
    ],
    [
      "whose Arrow file is missing",
      arrow("fileless", (directory) => rmSync(join(directory, "data-00000-of-00001.arrow"))),
      { code: 78, what: /no such file|missing/, next: /copy|again|save/ },
    ],
    [
      "of datasets 1.18",
      () => join(FIXTURES, "datasets/legacy-1.18"),
      { code: 78, what: /1\.18|2022|dataset\.arrow/, next: /save/ },
    ],
    [
      "with lz4 buffers",
      () => join(FIXTURES, "datasets/compressed-lz4"),
      { code: 78, what: /LZ4/i, next: /compress/ },
    ],
    [
      "with zstd buffers",
      () => join(FIXTURES, "datasets/compressed-zstd"),
      { code: 78, what: /Zstandard/, next: /compress/ },
    ],
    [
      "of several splits, without --split",
      () => join(FIXTURES, "datasets/dict"),
      { code: 78, what: /a split must be named/, next: "--split" },
    ],
    [
      "without input_ids (JSONL)",
      jsonl("column.jsonl", `{"tokens":[1,2]}\n`),
      { code: 78, what: /expected a column input_ids/, next: /forebay tokenize/ },
    ],
    [
      "without input_ids (Parquet)",
      () => {
        const filename = machine.path("column.parquet");
        parquetWriteFile({
          filename,
          columnData: [{ name: "text", data: ["a", "b"], type: "STRING" }],
        });
        return filename;
      },
      { code: 78, what: /expected a column input_ids/, next: /forebay tokenize/ },
    ],
    [
      "with ids outside the vocabulary",
      jsonl("vocabulary.jsonl", rows([1, 2], [383, 384])),
      { code: 2, what: "token id 384, the model's vocabulary ends at 383", next: "forebay tokenize" },
    ],
    [
      "with negative ids",
      jsonl("negative.jsonl", rows([1, 2], [1, -1])),
      { code: 78, what: /-1/, next: /row|tokenize/ },
    ],
    [
      "that is empty (JSONL)",
      jsonl("empty.jsonl", ""),
      { code: 78, what: "expected rows, found none", next: /rows|tokenize/ },
    ],
    [
      "of which --rows takes nothing",
      jsonl("few.jsonl", rows([1], [2])),
      { code: 78, what: "expected rows from 5 up to 9, the dataset has 2", next: /--rows/ },
    ],
    [
      "with a loss mask of another length",
      jsonl("mask.jsonl", `${JSON.stringify({ input_ids: [1, 2, 3], loss_mask: [0, 1] })}\n`),
      { code: 78, what: /loss_mask.*(2.*3|3.*2)/, next: /row|tokenize/ },
    ],
    [
      "whose line 3 is broken",
      jsonl("broken.jsonl", `${rows([1], [2])}{"input_ids": [3\n${rows([4])}`),
      { code: 78, what: /^line 3 /, next: "sed -n '3p' FILE" },
    ],
  ])("%s", async (title, make, expected) => {
    const dataset = make();
    const more: Record<string, string> = title.includes("--rows") ? { rows: "5:9" } : {};
    await refused(run({ dataset, ...more }), { where: dataset, ...expected });
  });

  test("with rows of length 0 and over the positions is done without them, and says which and why", async () => {
    const long = Array.from({ length: 600 }, (_, i) => i % 384);
    writeFileSync(machine.path("lengths.jsonl"), rows([1, 2, 3], [], long, [4, 5]));
    const ended = await machine.run([
      ...run({ dataset: machine.path("lengths.jsonl") }, "file:../store/lengths"),
      "--json",
    ]);
    expect(ended.code, ended.stderr).toBe(3);
    expect(JSON.parse(ended.stdout)).toMatchObject({
      state: "done_with_skips",
      samples: 2,
      skipped: 2,
    });
    const verified = await machine.run(["verify", "file:../store/lengths", "--deep", "--json"]);
    expect(verified.code, verified.stderr).toBe(0);
    expect(JSON.parse(verified.stdout)).toMatchObject({
      ok: true,
      rows: { planned: 4, committed: 2, skipped: 2, missing: 0 },
    });
    const plan = await machine.run([
      "plan",
      "--model",
      MODEL,
      "--dataset",
      machine.path("lengths.jsonl"),
      "--taps",
      "1,3",
    ]);
    expect(plan.stdout).toMatch(/empty|no tokens|length 0/i);
    expect(plan.stdout).toMatch(/512|positions|long/);
  });

  test("for whose rows no batch is left is refused", async () => {
    writeFileSync(machine.path("nothing.jsonl"), rows([], []));
    const where = machine.path("nothing.jsonl");
    await refused(run({ dataset: where }), {
      code: 78,
      what: "no row is left of 2: 2 empty",
      where,
      next: "--max-tokens",
    });
  });
});

describe("an S3 store", () => {
  let server: S3Server;
  let bucket: string;
  beforeAll(async () => {
    server = sharedS3("weed");
    bucket = await makeBucket(server, "bad");
  });
  const s3 = (endpoint: string, name = bucket) => run({ endpoint }, `s3://${name}/p/bad`);
  const objects = async () => {
    const client = s3Client(server);
    const { Contents } = await client.send(new ListObjectsV2Command({ Bucket: bucket }));
    client.destroy();
    return (Contents ?? []).map(({ Key, ETag }) => `${Key} ${ETag}`);
  };
  const onServer = (env: Record<string, string> = {}) => ({
    store: objects,
    env: { ...credentialEnv(server), ...env },
  });

  test("whose bucket does not exist", async () => {
    const expected = {
      code: 6,
      what: `no bucket "no-such-bucket"`,
      where: "s3://no-such-bucket/p/bad",
      next: "create it",
    };
    await refused(s3(server.endpoint, "no-such-bucket"), { ...expected, ...onServer() });
  });

  test.each([
    ["an unknown key", { AWS_ACCESS_KEY_ID: "nobody" }],
    ["a wrong secret", { AWS_SECRET_ACCESS_KEY: "wrong" }],
  ])("and %s", async (_, env) => {
    const ended = await refused(s3(server.endpoint), {
      code: 6,
      what: /credentials/,
      where: `s3://${bucket}/p/bad`,
      next: /AWS_ACCESS_KEY_ID|s3:GetObject/,
      ...onServer(env),
    });
    expect(ended.stderr).not.toContain(server.secretAccessKey);
  });

  test("and no credentials at all", async () => {
    await refused(s3(server.endpoint), {
      code: 6,
      what: "found no credentials",
      where: `s3://${bucket}/p/bad`,
      next: "AWS_ACCESS_KEY_ID",
      ...onServer({ AWS_ACCESS_KEY_ID: "", AWS_SECRET_ACCESS_KEY: "" }),
    });
  });

  test("and a clock that is an hour off", async () => {
    await refused(s3(server.endpoint), {
      code: 6,
      what: /clock is (59|60|61) minutes ahead of the store's/,
      where: `s3://${bucket}/p/bad`,
      next: "NTP",
      ...onServer({ NODE_OPTIONS: `--import=${CLOCK}`, FOREBAY_TEST_CLOCK_AHEAD_MS: String(3_600_000) }),
    });
  });

  test("that answers HTML", async () => {
    const page = createServer((_, answer) => {
      answer.writeHead(200, { "content-type": "text/html" });
      answer.end("<!doctype html><html><body>Console</body></html>");
    });
    const endpoint = await listen(page);
    try {
      const expected = { code: 6, what: "a web page", where: `s3://${bucket}/p/bad`, next: "--endpoint" };
      await refused(s3(endpoint), { ...expected, ...onServer() });
    } finally {
      page.close();
    }
  });

  test("that is not there", async () => {
    const [port] = await freePorts(1);
    const endpoint = `http://127.0.0.1:${port}`;
    const expected = {
      code: 6,
      what: `nothing listens at ${endpoint}`,
      where: `s3://${bucket}/p/bad`,
      next: "--endpoint",
    };
    await refused(s3(endpoint), { ...expected, ...onServer() });
  });

  test.each([
    ["s3://UPPER/p/run", "bucket name"],
    [`s3://bucket`, "names a store but no run in it"],
    ["bucket/run", "begins neither with s3:// nor with file:"],
  ])("at the address %s", async (address, what) => {
    await refused(run({}, address), { code: 2, what, where: address, next: /s3:\/\/|file:|add a name/ });
  });
});

describe("a part that another run works on", () => {
  let first: Running;
  beforeAll(async () => {
    const ids = Array.from({ length: 400 }, (_, row) =>
      Array.from({ length: 40 }, (_, i) => (row + i) % 384),
    );
    writeFileSync(machine.path("many.jsonl"), rows(...ids));
    first = machine.start(run(flags, "file:../store/taken"));
    await logged(machine.path("run-taken"), "batch.committed");
    // Frozen, so that it changes nothing while the other is refused.
    await freeze(first.child.pid!);
  });
  afterAll(async () => {
    first.child.kill("SIGKILL");
    await first.ended;
  });
  const flags = {
    dataset: "../many.jsonl",
    "pack-bytes": "16KiB",
    "run-dir": "../run-taken",
    spool: "../spool-taken",
  };
  const expected = { code: 5, where: "store/taken", next: "forebay stop" };

  test("on the same machine", async () => {
    await refused(run(flags, "file:../store/taken"), {
      ...expected,
      what: /runs already on this machine.*pid/,
    });
  });

  test("known only by its heartbeat in the store", async () => {
    const args = run({ ...flags, "run-dir": "../run-other", spool: "../spool-other" }, "file:../store/taken");
    await refused(args, { ...expected, what: /another Forebay works on it: .* pid/ });
  });
});

describe("a run.json", () => {
  test.each([
    [
      "of a newer version",
      '{"format":"forebay-run-2"}',
      { code: 78, what: "newer Forebay (forebay-run-2)", next: "install the newer Forebay" },
    ],
    ["that is damaged", '{"format":', { code: 9, what: "not JSON", next: "another name" }],
  ])("%s", async (_, text, expected) => {
    mkdirSync(machine.path("store/standing"), { recursive: true });
    writeFileSync(machine.path("store/standing/run.json"), text);
    await refused(run({}, "file:../store/standing"), { ...expected, where: "store/standing/run.json" });
  });

  test("that is not there cannot be resumed", async () => {
    const where = machine.path("store/none");
    const args = ["resume", `file:${where}`, "--model", MODEL, "--progress", "quiet", "--port", "0"];
    await refused(args, { code: 2, what: "no run stands here", where, next: "forebay run ADDRESS" });
  });
});

describe("a spool", () => {
  test("that cannot be written", async () => {
    const disk = smallDisk(machine.path("read-only"), "1m");
    try {
      disk.readOnly();
      const spool = join(disk.path, "spool");
      await refused(run({ spool }), {
        code: 8,
        what: /read-only|permission/,
        where: disk.path,
        next: /--spool|remount/,
        spool: disk.path,
      });
    } finally {
      disk.remove();
    }
  });

  test("on a disk that is full", async () => {
    const disk = smallDisk(machine.path("full"), "1m");
    try {
      writeFileSync(join(disk.path, "other"), Buffer.alloc(2 ** 20));
      const spool = join(disk.path, "spool");
      await refused(run({ spool }), {
        code: 8,
        what: /out of space/,
        where: spool,
        next: "free some",
        spool: disk.path,
      });
    } finally {
      disk.remove();
    }
  });

  test("on a disk with less than the floor waits, and gives up with 75 where it was told to", async () => {
    const disk = smallDisk(machine.path("floor"), "1m");
    try {
      const spool = join(disk.path, "spool");
      const args = run({ spool, "max-blocked": "1s", "disk-floor": "1GiB" }, "file:../store/floor");
      const ended = await machine.run(args);
      expect(ended.code, ended.stderr).toBe(75);
      expect(ended.stderr).toMatch(
        /blocked for 1 s.*the disk has .* free, and 1\.00 GiB are always left \(--disk-floor\)/,
      );
      expect(ended.stderr).toMatch(/next: +free disk space/);
      expect(listing(machine.path("store/floor")).filter((path) => path.includes("/packs/"))).toEqual([]);
    } finally {
      disk.remove();
    }
  });

  test("of another run, with packs in it", async () => {
    const spool = machine.path("others-spool");
    mkdirSync(join(spool, "ready"), { recursive: true });
    writeFileSync(join(spool, "owner.json"), JSON.stringify({ runId: "ab".repeat(32), part: "1/1" }));
    writeFileSync(join(spool, "ready/00000003.safetensors"), "not in the store yet");
    await refused(run({ spool }), {
      code: 5,
      what: /belongs to run abab/,
      where: spool,
      next: "--spool",
      spool,
    });
  });

  test("that is a directory of something else", async () => {
    const spool = machine.path("photos");
    mkdirSync(spool);
    writeFileSync(join(spool, "holiday.jpg"), "");
    await refused(run({ spool }), {
      code: 8,
      what: /holds other files \("holiday.jpg"\)/,
      where: spool,
      next: "--spool",
      spool,
    });
  });

  test("too small for its engines", async () => {
    const expected = {
      code: 2,
      what: /two packs an engine and one more/,
      where: "--spool-bytes",
      next: "--spool-bytes",
    };
    await refused(run({ "spool-bytes": "3000B", "pack-bytes": "4KiB" }), expected);
  });
});

describe("settings", () => {
  test.each([
    [["run", "--spool-byte", "1GiB"], { what: "--spool-byte", where: "forebay run", next: "--spool-bytes" }],
    [["run", "file:../store/bad", "--engine", "onx"], { what: /onnx/, where: "--engine", next: "onnx" }],
    [
      ["run", "file:../store/bad", "--spool-bytes", "200 gigs"],
      { what: /200 gigs/, where: "--spool-bytes", next: "GiB" },
    ],
    [
      ["run", "file:../store/bad", "--max-blocked", "soon"],
      { what: /soon/, where: "--max-blocked", next: "ms, s, m, h, d" },
    ],
    [
      ["run", "file:../store/bad", "--part", "3/2"],
      { what: /3\/2/, where: "--part", next: /1\/4|i\/N|such as/ },
    ],
    [
      ["run", "file:../store/bad", "--uploads", "2000"],
      { what: /2000/, where: "--uploads", next: /1000|auto/ },
    ],
    [
      ["run", "file:../store/bad", "--endpoint", "nowhere"],
      { what: /nowhere|URL/, where: "--endpoint", next: /http/ },
    ],
    [["run", "file:../store/bad"], { what: /model|dataset/, where: "", next: /--model|--dataset/ }],
    [["verfy", "file:../store/bad"], { what: "verfy", where: "", next: "verify" }],
  ])("%j", async (args, expected) => {
    await refused(args, { code: 2, ...expected });
  });

  test.each([
    ["an unknown key", "spool_byte: 1GiB\n", "spool_byte", "spool-bytes"],
    ["a value that does not parse", "spool-bytes: lots\n", "lots", "GiB"],
    ["a secret", "aws_secret_access_key: abc\n", "secret", "environment|profile|chain"],
    ["what is no YAML", "taps: { 1\n", "not valid YAML", "run.yaml|forebay init"],
  ])("a run.yaml with %s", async (_, line, what, next) => {
    const file = machine.path("work/run.yaml");
    writeFileSync(file, `address: file:../store/bad\n${line}`);
    try {
      const found = await refused(["run"], {
        code: 78,
        what: new RegExp(what),
        where: /run\.yaml:[23]/,
        next: new RegExp(next),
      });
      expect(found.stderr).not.toContain("abc");
    } finally {
      rmSync(file);
    }
  });
});

/** Relative path, size and SHA-256 of every file below `directory`; empty where it does not exist. */
function listing(directory: string): string[] {
  if (!existsSync(directory)) return [];
  return readdirSync(directory, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => join(parentPath, name))
    .map((path) => `${path} ${createHash("sha256").update(readFileSync(path)).digest("hex")}`)
    .sort();
}

function rows(...ids: number[][]): string {
  return ids.map((input_ids) => `${JSON.stringify({ input_ids })}\n`).join("");
}

function config(change: Record<string, unknown>): Buffer {
  return Buffer.from(
    JSON.stringify({ ...JSON.parse(readFileSync(join(MODEL, "config.json"), "utf8")), ...change }),
  );
}

let models = 0;
/** A fixture's model in a directory of its own, without some of its files. */
function copyModel(name: string, without: string[] = []): string {
  const directory = machine.path(`model-${models++}`);
  cpSync(join(FIXTURES, "models", name), directory, { recursive: true });
  makeWritable(directory);
  for (const file of without) rmSync(join(directory, file));
  return directory;
}

function modelWith(files: Record<string, Uint8Array>): string {
  const directory = copyModel("random-qwen3", Object.keys(files));
  for (const [name, bytes] of Object.entries(files)) writeFileSync(join(directory, name), bytes);
  return directory;
}

/** Fixtures are read-only; their copies are not. */
function makeWritable(directory: string): void {
  chmodSync(directory, 0o755);
  for (const name of readdirSync(directory)) chmodSync(join(directory, name), 0o644);
}

function listen(server: Server): Promise<string> {
  return new Promise((resolve) => {
    server.listen(0, "127.0.0.1", () =>
      resolve(`http://127.0.0.1:${(server.address() as AddressInfo).port}`),
    );
  });
}

/** Waits until the run directory's log holds that event. */
async function logged(runDirectory: string, event: string): Promise<void> {
  while (!eventsOf(runDirectory).some((line) => line.event === event)) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
