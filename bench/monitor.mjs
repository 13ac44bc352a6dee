#!/usr/bin/env node
// bench monitor: how long /api/status takes while packs are made and uploaded at full speed by the same process, to
// a null sink, with 100 pages open. Targets: p99 <= 50 ms.
//   --seconds N    of measuring, each time; default 20
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
const { values: flags } = parseArgs({ options: { seconds: { type: "string", default: "20" } } });
const PAGES = 100;
const EVERY_MS = 25;
/** More packs than can be sent in the time: the process is ended when the measuring is. */
const PACKS = 100_000;
const SAMPLE_TOKENS = 332;
const SAMPLES_PER_PACK = 3;

/** How late this process's own timers are: a machine with other things to do answers late whatever it is asked. */
const latenessMs = [];

const scratch = mkdtempSync(join(tmpdir(), "forebay-bench-"));
const children = [];
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
  await sleep(3_000);
  const streams = Array.from({ length: PAGES }, () => openStream(port));
  const results = {};
  for (const path of ["/api/status", "/api/history", "/metrics"]) {
    const ms = await measure(port, path, (Number(flags.seconds) * 1_000) / (path === "/api/status" ? 1 : 4));
    results[path] = { p50: quantile(ms, 0.5), p99: quantile(ms, 0.99), max: ms.at(-1), count: ms.length };
    const { p50, p99, max, count } = results[path];
    console.log(
      `${path.padEnd(14)} ${count} requests: p50 ${p50.toFixed(1)} ms, p99 ${p99.toFixed(1)} ms, max ${max.toFixed(1)} ms`,
    );
  }
  const uploaded = await sinkBytes();
  console.log(`meanwhile uploaded: ${(uploaded / 1e6).toFixed(0)} MB/s of packs; ${streams.length} streams`);
  const { p50, p99 } = results["/api/status"];
  const lateness = quantile(
    latenessMs.sort((a, b) => a - b),
    0.99,
  );
  console.log(`this machine's own timers meanwhile: p99 ${lateness.toFixed(1)} ms late`);
  console.log(
    JSON.stringify({
      p50_ms: round(p50),
      p99_ms: round(p99),
      uploaded_mb_s: round(uploaded / 1e6),
      timers_late_p99_ms: round(lateness),
    }),
  );
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

async function measure(port, path, forMs) {
  const times = [];
  const untilMs = performance.now() + forMs;
  while (performance.now() < untilMs) {
    const startMs = performance.now();
    await ask(port, path);
    const ms = performance.now() - startMs;
    times.push(ms);
    const pauseMs = Math.max(1, EVERY_MS - ms);
    const pausedMs = performance.now();
    await sleep(pauseMs);
    latenessMs.push(performance.now() - pausedMs - pauseMs);
  }
  return times.sort((a, b) => a - b);
}

function ask(port, path) {
  return new Promise((resolve, reject) => {
    get({ port, host: "127.0.0.1", path, agent }, (answer) => {
      if (answer.statusCode !== 200) reject(new Error(`${path}: ${answer.statusCode}`));
      answer.resume();
      answer.on("end", resolve);
    }).on("error", reject);
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
