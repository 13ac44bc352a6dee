#!/usr/bin/env node
// bench monitor: how long /api/status takes while packs are made and uploaded at full speed by the same process, to
// a null sink, with 100 pages open. Targets: p99 <= 50 ms, or what the machine allows: `floor`, the same question at the
// same moments to a process that only gives constant bytes.
//   --seconds N    of measuring, each time; default 20
//   --pages N      open meanwhile; default 100
import { spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { Agent, get } from "node:http";
import { cpus, tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const { values: flags } = parseArgs({
  options: { seconds: { type: "string", default: "20" }, pages: { type: "string", default: "100" } },
});
const PAGES = Number(flags.pages);
const EVERY_MS = 25;
/** More packs than can be sent in the time: the process is ended when the measuring is. */
const PACKS = 100_000;
const SAMPLE_TOKENS = 332;
const SAMPLES_PER_PACK = 3;

const scratch = mkdtempSync(join(tmpdir(), "forebay-bench-"));
const children = [];
/** One connection to each server. */
const agent = new Agent({ keepAlive: true, maxSockets: 1 });
let code = 1;
try {
  await main();
  code = 0;
} catch (error) {
  console.error(error);
} finally {
  for (const child of children) child.kill("SIGKILL");
  rmSync(scratch, { recursive: true, force: true });
  process.exit(code);
}

async function main() {
  console.log(`${cpus().length} x ${cpus()[0].model}; Node ${process.version}; ${PAGES} pages open`);
  const sinkPort = await startSink();
  const port = await startSupervisor(sinkPort);
  const floorPort = await startFloor((await ask(port, "/api/status")).length);
  await sleep(3_000);
  const streams = Array.from({ length: PAGES }, () => openStream(port));
  await sleep(1_000);
  const seconds = Number(flags.seconds);
  const status = await measure(port, "/api/status", seconds, floorPort);
  show("/api/status", status.ms);
  show("floor", status.floorMs);
  for (const path of ["/api/history", "/metrics"]) show(path, (await measure(port, path, seconds / 4)).ms);
  const uploaded = await sinkBytes();
  console.log(`meanwhile uploaded: ${(uploaded / 1e6).toFixed(0)} MB/s of packs; ${streams.length} streams`);
  console.log(
    JSON.stringify({
      p50_ms: round(quantile(status.ms, 0.5)),
      p99_ms: round(quantile(status.ms, 0.99)),
      floor_p50_ms: round(quantile(status.floorMs, 0.5)),
      floor_p99_ms: round(quantile(status.floorMs, 0.99)),
      uploaded_mb_s: round(uploaded / 1e6),
    }),
  );
}

function show(name, ms) {
  const [p50, p99, max] = [quantile(ms, 0.5), quantile(ms, 0.99), ms.at(-1)].map((each) => each.toFixed(1));
  console.log(`${name.padEnd(14)} ${ms.length} requests: p50 ${p50} ms, p99 ${p99} ms, max ${max} ms`);
}

async function startSink() {
  const binary = join(ROOT, ".cache/bench-sink");
  const source = join(ROOT, "bench/data-plane/sink.go");
  if (spawnSync("go", ["build", "-o", binary, source], { stdio: "inherit" }).status !== 0) {
    throw new Error("the sink needs Go: https://go.dev/dl");
  }
  const child = spawn(binary, [], { stdio: ["ignore", "pipe", "inherit"] });
  children.push(child);
  return await new Promise((resolve, reject) => {
    child.stdout.once("data", (data) => resolve(Number(data)));
    child.once("exit", () => reject(new Error("the sink did not start")));
  });
}

/** The data plane at full speed with the monitor beside it; resolves to the monitor's port. */
async function startSupervisor(sinkPort) {
  const options = {
    taps: 5,
    hidden: 5_120,
    tokens: SAMPLE_TOKENS,
    samplesPerPack: SAMPLES_PER_PACK,
    packs: PACKS,
    whole: true,
    uploads: "auto",
    inflightBytes: 512 * 2 ** 20,
    identity: "ab".repeat(32),
    directory: join(scratch, "spool"),
    spec: {
      kind: "s3",
      bucket: "bucket",
      prefix: `forebay-${randomBytes(4).toString("hex")}`,
      endpoint: `http://127.0.0.1:${sinkPort}`,
      region: "us-east-1",
      pathStyle: true,
      profile: null,
    },
  };
  const child = spawn(
    process.execPath,
    [
      "--import",
      join(ROOT, "bench/monitor/beside.mjs"),
      join(ROOT, "bench/data-plane/forebay.mjs"),
      JSON.stringify(options),
    ],
    {
      stdio: ["ignore", "inherit", "inherit", "ipc"],
      env: { ...process.env, AWS_ACCESS_KEY_ID: "bench", AWS_SECRET_ACCESS_KEY: "bench" },
    },
  );
  children.push(child);
  return await new Promise((resolve, reject) => {
    child.once("message", ({ port }) => resolve(port));
    child.once("exit", (status) => reject(new Error(`the data plane ended with ${status}`)));
  });
}

/** Times in milliseconds, sorted; with `floorPort` also of the same question asked there, by turns. */
async function measure(port, path, forS, floorPort = null) {
  const [ms, floorMs] = [[], []];
  const untilMs = performance.now() + forS * 1_000;
  while (performance.now() < untilMs) {
    const took = await timed(port, path);
    ms.push(took);
    await sleep(Math.max(1, EVERY_MS - took));
    if (floorPort === null) continue;
    const floor = await timed(floorPort, path);
    floorMs.push(floor);
    await sleep(Math.max(1, EVERY_MS - floor));
  }
  return { ms: ms.sort((a, b) => a - b), floorMs: floorMs.sort((a, b) => a - b) };
}

async function timed(port, path) {
  const startMs = performance.now();
  await ask(port, path);
  return performance.now() - startMs;
}

/** The answer's body. */
function ask(port, path) {
  return new Promise((resolve, reject) => {
    get({ port, host: "127.0.0.1", path, agent }, (answer) => {
      if (answer.statusCode !== 200) reject(new Error(`${path}: ${answer.statusCode}`));
      const chunks = [];
      answer.on("data", (chunk) => chunks.push(chunk));
      answer.on("end", () => resolve(Buffer.concat(chunks)));
    }).on("error", reject);
  });
}

async function startFloor(bytes) {
  const child = spawn(process.execPath, [join(ROOT, "bench/monitor/floor.mjs"), String(bytes)], {
    stdio: ["ignore", "inherit", "inherit", "ipc"],
  });
  children.push(child);
  return await new Promise((resolve, reject) => {
    child.once("message", ({ port }) => resolve(port));
    child.once("exit", (status) => reject(new Error(`the floor ended with ${status}`)));
  });
}

function openStream(port) {
  return get({ port, host: "127.0.0.1", path: "/api/events", agent: false }, (answer) => answer.resume());
}

/** Bytes a second that the data plane's process sends, by the kernel's count of what all its threads write. */
async function sinkBytes() {
  const { readFileSync } = await import("node:fs");
  const sink = children[0].pid;
  const read = () => Number(/rchar: (\d+)/.exec(readFileSync(`/proc/${sink}/io`, "utf8"))[1]);
  const [before, startMs] = [read(), performance.now()];
  await sleep(2_000);
  return ((read() - before) / (performance.now() - startMs)) * 1_000;
}

function quantile(sorted, share) {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))];
}

function round(value) {
  return Number(value.toPrecision(3));
}
