#!/usr/bin/env node
// bench data-plane: finished states of samples of 1.1 MB and of 17 MB to a store, by us, by boto3, and by curl.
// To a null sink (the client is the limit) and to versitygw (a real, strict server).
//   --gb N         data of each of our runs, default 4
//   --uploads N    connections, default auto
//   --spool DIR    where packs and files lie; default a folder in the system's temporary directory
//   --sink-only    without versitygw
import { spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statfsSync, writeFileSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { CreateBucketCommand, S3Client } from "@aws-sdk/client-s3";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const HERE = join(ROOT, "bench/data-plane");
const { values: flags } = parseArgs({
  options: {
    gb: { type: "string", default: "4" },
    uploads: { type: "string", default: "auto" },
    spool: { type: "string" },
    "sink-only": { type: "boolean", default: false },
  },
});
const uploads = flags.uploads === "auto" ? "auto" : Number(flags.uploads);
const inflightBytes = 512 * 2 ** 20;
const shape = { taps: 5, hidden: 5120 };
const PACK_BYTES_MAX = 64 * 2 ** 20;
const sizes = [
  { name: "1mb", label: "1.1 MB", tokens: 21 },
  { name: "17mb", label: "17 MB", tokens: 332 },
].map((size) => {
  const sampleBytes = size.tokens * (shape.taps * shape.hidden * 2 + 16);
  return { ...size, sampleBytes, samplesPerPack: Math.floor(PACK_BYTES_MAX / sampleBytes) };
});

const scratch = mkdtempSync(join(flags.spool ?? tmpdir(), "forebay-bench-"));
const children = new Set();
let code = 1;
try {
  await main();
  code = 0;
} finally {
  for (const child of children) child.kill("SIGKILL");
  rmSync(scratch, { recursive: true, force: true });
  process.exitCode = code;
}

async function main() {
  const servers = [await startSink(), ...(flags["sink-only"] ? [] : [await startVersitygw()])];
  const python = setupPython();
  console.log(
    `${cpus().length} x ${cpus()[0].model}; Node ${process.version}; scratch on ${diskName(scratch)}; ` +
      `in flight <= 512 MiB; uploads ${flags.uploads}; verify: HEAD with checksum, each pack; ` +
      "boto3 as it comes (over http it signs a SHA-256 of each body), nothing verified",
  );
  const results = {};
  for (const server of servers) results[server.name] = await benchServer(server, python);

  const { sink } = results;
  const rssOver = Math.max(...Object.values(results).map(({ rssOverBytes }) => rssOverBytes));
  const ratios = {
    x_boto3_1mb: round(sink["1mb"].x),
    cpu_vs_boto3_1mb: round(sink["1mb"].cpu),
    x_boto3_17mb: round(sink["17mb"].x),
    cpu_vs_boto3_17mb: round(sink["17mb"].cpu),
    vs_curl: round(sink.vsCurl),
    rss_over_inflight_mb: round(rssOver / 1e6),
  };
  if (results.versitygw) {
    ratios.versitygw = {
      x_boto3_1mb: round(results.versitygw["1mb"].x),
      x_boto3_17mb: round(results.versitygw["17mb"].x),
      vs_curl: round(results.versitygw.vsCurl),
    };
  }
  console.log(JSON.stringify(ratios));
}

async function benchServer(server, python) {
  const result = { rssOverBytes: 0 };
  const note = (run) => {
    result.rssOverBytes = Math.max(result.rssOverBytes, run.rss_bytes - inflightBytes);
    return run;
  };
  for (const size of sizes) {
    const packs = Math.max(
      4,
      Math.round((Number(flags.gb) * 1e9) / (size.samplesPerPack * size.sampleBytes)),
    );
    const samples = packs * size.samplesPerPack;
    const ours = note(await runForebay(server, size, packs, true));
    tell(
      server,
      `forebay, samples of ${size.label}`,
      ours,
      samples * size.sampleBytes,
      `${ours.limit} connections`,
    );
    // A quarter of the data is enough to know the slower one by.
    const theirSamples = Math.ceil(samples / 4);
    const theirs = await runBoto3(server, size, theirSamples, python);
    tell(server, `boto3, files of ${size.label}`, theirs, theirSamples * size.sampleBytes, "100 threads");
    result[size.name] = {
      x: samples / ours.seconds / (theirSamples / theirs.seconds),
      cpu: ours.cpu_seconds / samples / (theirs.cpu_seconds / theirSamples),
    };
  }
  const size = sizes[0];
  const packs = Math.max(
    4,
    Math.round((Number(flags.gb) * 1e9) / 2 / (size.samplesPerPack * size.sampleBytes)),
  );
  const ready = note(await runForebay(server, size, packs, false));
  tell(server, "forebay, ready packs", ready, ready.bytes, `${ready.limit} connections, verified`);
  const curls = [await runCurl(server, packs, size, 1), await runCurl(server, packs, size, 4)];
  for (const curl of curls) tell(server, "curl -T, ready packs", curl, curl.bytes, curl.note);
  result.vsCurl = ready.bytes / ready.seconds / Math.max(...curls.map((curl) => curl.bytes / curl.seconds));
  return result;
}

function runForebay(server, size, packs, whole) {
  const options = {
    ...shape,
    tokens: size.tokens,
    samplesPerPack: size.samplesPerPack,
    packs,
    whole,
    uploads,
    inflightBytes,
    identity: "ab".repeat(32),
    directory: join(scratch, `spool-${randomBytes(4).toString("hex")}`),
    spec: {
      kind: "s3",
      bucket: server.bucket,
      prefix: `forebay-${randomBytes(4).toString("hex")}`,
      endpoint: server.endpoint,
      region: "us-east-1",
      pathStyle: true,
      profile: null,
    },
  };
  return runJson(process.execPath, [join(HERE, "forebay.mjs"), JSON.stringify(options)], server);
}

function runBoto3(server, size, samples, python) {
  const name = `boto3-${randomBytes(4).toString("hex")}`;
  const directory = join(scratch, name);
  mkdirSync(directory);
  const { endpoint, bucket } = server;
  const options = { ...shape, tokens: size.tokens, samples, endpoint, bucket, directory, name };
  return runJson(python, [join(HERE, "boto3_client.py"), JSON.stringify(options)], server);
}

/** The same packs' bytes from files, one after the other or four at a time; never verified. */
async function runCurl(server, packs, size, parallel) {
  const bytes = size.samplesPerPack * size.sampleBytes;
  const files = Array.from({ length: packs }, (_, i) => join(scratch, `pack${i}`));
  const body = randomBytes(bytes);
  for (const file of files) writeFileSync(file, body);
  const prefix = `curl-${randomBytes(4).toString("hex")}`;
  const sign = server.isSigned
    ? [
        "--aws-sigv4",
        "aws:amz:us-east-1:s3",
        "--user",
        `${server.id}:${server.secret}`,
        "-H",
        "x-amz-content-sha256: UNSIGNED-PAYLOAD",
      ]
    : [];
  const args = ["--silent", "--show-error", "--fail", "-H", "Expect:", ...sign];
  if (parallel > 1) args.push("--parallel", "--parallel-max", String(parallel));
  const url = `${server.endpoint}/${server.bucket}/${prefix}/`;
  for (const file of files) args.push("-o", "/dev/null", "-T", file, url);
  const startMs = performance.now();
  const { status, stderr } = spawnSync("curl", args, { maxBuffer: 1e8 });
  const seconds = (performance.now() - startMs) / 1000;
  for (const file of files) rmSync(file);
  if (status !== 0) throw new Error(`curl exited with ${status}: ${String(stderr).slice(0, 500)}`);
  return {
    seconds,
    cpu_seconds: null,
    rss_bytes: 0,
    bytes: packs * bytes,
    note: `${parallel} at a time, not verified`,
  };
}

function tell(server, what, run, bytes, note) {
  const cpu = run.cpu_seconds === null ? "" : `${(run.cpu_seconds / (bytes / 1e9)).toFixed(2)} CPU s/GB`;
  const rss = run.rss_bytes ? `${Math.round(run.rss_bytes / 1e6)} MB` : "";
  const mbs = Math.round(bytes / 1e6 / run.seconds);
  console.log(
    `${server.name.padEnd(10)} ${what.padEnd(30)} ${String(mbs).padStart(6)} MB/s  ${cpu.padStart(14)}  ${rss.padStart(8)}  ${note}`,
  );
}

async function startSink() {
  const binary = join(ROOT, ".cache/bench-sink");
  const build = spawnSync("go", ["build", "-o", binary, join(HERE, "sink.go")], { stdio: "inherit" });
  if (build.status !== 0) throw new Error("the sink needs Go: https://go.dev/dl");
  const child = start(binary, [], {});
  const port = await new Promise((resolve, reject) => {
    child.stdout.once("data", (data) => resolve(Number(data)));
    child.once("exit", () => reject(new Error("the sink did not start")));
  });
  return {
    name: "sink",
    endpoint: `http://127.0.0.1:${port}`,
    bucket: "bucket",
    id: "bench",
    secret: "bench",
    isSigned: false,
  };
}

async function startVersitygw() {
  const binary = join(ROOT, ".cache/s3/bin/versitygw");
  if (!existsSync(binary)) {
    spawnSync(process.execPath, [join(ROOT, "scripts/setup.mjs"), "--long"], { stdio: "inherit" });
  }
  const data = join(scratch, "versitygw");
  mkdirSync(data);
  const port = 20_000 + Math.floor(Math.random() * 20_000);
  const server = {
    name: "versitygw",
    endpoint: `http://127.0.0.1:${port}`,
    bucket: "bucket",
    id: "bench",
    secret: randomBytes(12).toString("hex"),
    isSigned: true,
  };
  const args = ["--port", `127.0.0.1:${port}`, "--quiet", "--keep-alive", "posix", data];
  start(binary, args, { ROOT_ACCESS_KEY: server.id, ROOT_SECRET_KEY: server.secret });
  process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED = "true";
  const client = new S3Client({
    endpoint: server.endpoint,
    region: "us-east-1",
    forcePathStyle: true,
    credentials: { accessKeyId: server.id, secretAccessKey: server.secret },
  });
  for (let tries = 0; ; tries += 1) {
    try {
      await client.send(new CreateBucketCommand({ Bucket: server.bucket }));
      break;
    } catch (error) {
      if (tries > 100) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
  client.destroy();
  return server;
}

/** boto3, pinned, in an environment of the bench's own. */
function setupPython() {
  const venv = join(ROOT, ".cache/bench-venv");
  const python = join(venv, "bin/python");
  const stamp = join(venv, ".requirements");
  const requirements = join(HERE, "requirements.txt");
  const wanted = readFileSync(requirements, "utf8");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted) return python;
  console.error("bench: installing boto3 and safetensors into .cache/bench-venv");
  const must = (command, args) => {
    if (spawnSync(command, args, { stdio: ["ignore", 2, 2] }).status !== 0)
      throw new Error(`${command} failed`);
  };
  must("python3", ["-m", "venv", venv]);
  must(python, ["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "-r", requirements]);
  writeFileSync(stamp, wanted);
  return python;
}

function start(command, args, env) {
  const child = spawn(command, args, {
    env: { PATH: process.env.PATH, HOME: scratch, ...env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  children.add(child);
  child.once("exit", () => children.delete(child));
  return child;
}

function runJson(command, args, server) {
  const child = start(command, args, {
    AWS_ACCESS_KEY_ID: server.id,
    AWS_SECRET_ACCESS_KEY: server.secret,
    AWS_SHARED_CREDENTIALS_FILE: "/dev/null",
    AWS_CONFIG_FILE: "/dev/null",
    AWS_EC2_METADATA_DISABLED: "true",
    AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED: "true",
  });
  return new Promise((resolve, reject) => {
    let out = "";
    child.stdout.on("data", (data) => {
      out += data;
    });
    child.once("error", reject);
    child.once("close", (status) => {
      if (status === 0) resolve(JSON.parse(out.trim().split("\n").at(-1)));
      else reject(new Error(`${command} exited with ${status}`));
    });
  });
}

function diskName(path) {
  const known = {
    61267: "ext4",
    1481003842: "xfs",
    2435016766: "btrfs",
    16914836: "tmpfs",
    2035054128: "overlayfs",
  };
  const { type } = statfsSync(path);
  return known[type] ?? `file system 0x${type.toString(16)}`;
}

function round(n) {
  return Math.round(n * 100) / 100;
}
