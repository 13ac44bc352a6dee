/**
 * A small real child that speaks the engine protocol, well (no --mode) or badly. Its states are made up but
 * deterministic: a function of the token's id, its position, the tap and the hidden unit.
 *
 *   --mode NAME       how it misbehaves (see MODES)
 *   --rows 3,9        only in requests that hold one of these rows (and, where it can, only for these rows)
 *   --lives N --count FILE   only in its first N lives; FILE counts them
 *   --later NAME      how it misbehaves in its later lives
 *   --hidden N        hidden size, default 8
 *   --slots N         batches it wants outstanding, default 3
 *   --uuid NAME       claims to run on a GPU of that name
 *   --forward-ms N    how long each forward takes, default 0
 */
import { appendFileSync, closeSync, openSync, readFileSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { crc32c } from "@node-rs/crc32";

const MODES = [
  "die-at-start", "no-hello", "hello-twice", "garbage-at-start",
  "die-loading", "hang-loading", "refuse-load", "beat-loading",
  "garbage", "nan-json", "endless-line", "unknown-type", "close-stdout",
  "die-in-batch", "die-half", "sigkill-itself", "exit-70",
  "hang-first", "hang-later", "beat-hung", "repeat-progress", "hang-ignoring-sigterm", "late",
  "twice", "wrong-id", "wrong-attempt", "forgets", "unknown-row", "row-twice", "progress-backwards",
  "too-few-bytes", "wrong-tokens", "nan", "zeros", "constant", "other-sample", "constant-lie",
  "fail-rows", "oom", "enospc", "flood-stderr", "slow-exit", "drift",
  "mixes-up", "repeats", "near-constant", "checks-nothing",
]; // biome-ignore format: a list to read

const { values } = parseArgs({
  options: {
    mode: { type: "string" },
    rows: { type: "string" },
    lives: { type: "string" },
    later: { type: "string" },
    count: { type: "string" },
    hidden: { type: "string", default: "8" },
    slots: { type: "string", default: "3" },
    uuid: { type: "string" },
    "forward-ms": { type: "string", default: "0" },
  },
});
for (const name of [values.mode, values.later])
  if (name && !MODES.includes(name)) throw new Error(`no mode ${name}`);

const hidden = Number(values.hidden);
const badRows = values.rows ? new Set(values.rows.split(",").map(Number)) : null;
const life = values.count ? countLife(values.count) : 1;
const mode = values.lives && life > Number(values.lives) ? values.later : values.mode;
let taps = [];
let forwards = 0;
let work = Promise.resolve();
let last = null;

const say = (message) => writeSync(1, `${JSON.stringify(message)}\n`);
const hang = () => new Promise(() => setInterval(() => {}, 60_000));

if (mode === "hang-ignoring-sigterm" || mode === "slow-exit") process.on("SIGTERM", () => {});
if (mode === "die-at-start") {
  for (let frame = 1; frame <= 12; frame += 1) process.stderr.write(`frame ${frame}\n`);
  process.stderr.write("cannot start\n");
  process.exit(3);
}
if (mode === "flood-stderr")
  for (let line = 0; line < 20_000; line += 1) writeSync(2, `noise ${line} \u001b[31mred\u001b[0m\n`);
if (mode === "garbage-at-start") writeSync(1, "Loading checkpoint shards: 100%\n");
if (mode === "no-hello") await hang();
hello();
if (mode === "hello-twice") hello();

const input = createInterface({ input: process.stdin });
input.on("line", (line) => {
  const message = JSON.parse(line);
  if (message.type === "shutdown") {
    if (mode === "slow-exit") return;
    say({ type: "bye" });
    process.exit(0);
  }
  work = work.then(() => answer(message));
});
// An orphan must not keep a device: the end of stdin is the end of the parent.
input.on("close", () => process.exit(0));

async function answer(message) {
  if (message.type === "load") return load(message);
  if (message.type === "check") return say({ type: "checked", id: message.id, results: [] });
  return extract(message);
}

async function load({ id, taps: asked, options }) {
  if (mode === "die-loading") process.exit(4);
  if (mode === "hang-loading") await hang();
  if (mode === "beat-loading") {
    setInterval(() => say({ type: "alive", stage: "load" }), 20);
    await hang();
  }
  if (mode === "refuse-load") {
    return say({
      type: "error",
      id,
      rows: [],
      kind: "bad-request",
      errno: null,
      message: "no such family",
      retry: "no",
    });
  }
  taps = asked;
  say({
    type: "loaded", id, arch: "FakeForCausalLM", blocks: Math.max(...taps) + 1, hidden, vocab: 100_000,
    positions: null, dtype: "bfloat16", kernels: ["fake"],
    slots: { tokens: 1_000_000, batches: Number(values.slots) },
    forward_tokens: options.forward_tokens ?? 400_000, checks: mode === "checks-nothing" ? ["greedy"] : [],
  }); // biome-ignore format: one message
}

async function extract(message) {
  const { id, samples, file } = message;
  const bad = mode && (!badRows || samples.some(({ row }) => badRows.has(row))) ? mode : undefined;
  const isBad = (row) => bad !== undefined && (!badRows || badRows.has(row));
  const error = (fields) =>
    say({ type: "error", id, rows: [], errno: null, message: "as told", retry: "no", ...fields });
  const total = samples.reduce((sum, { ids }) => sum + ids.length, 0);
  const answers = [];
  const failed = [];
  let done = 0;

  if (bad === "hang-first" || (bad === "hang-later" && forwards > 0)) await hang();
  if (bad === "hang-ignoring-sigterm") await hang();
  if (bad === "beat-hung") {
    setInterval(() => say({ type: "alive", stage: "extract" }), 20);
    await hang();
  }
  if (bad === "garbage") writeSync(1, "tensor([1, 2, 3])\n");
  if (bad === "nan-json")
    writeSync(
      1,
      `{"type":"states","id":${id},"attempt":1,"samples":[],"seconds":{"forward":NaN,"write":0}}\n`,
    );
  if (bad === "unknown-type") say({ type: "hidden", id });
  if (bad === "endless-line") for (;;) writeSync(1, "x".repeat(1 << 20));
  if (bad === "close-stdout") {
    closeSync(1);
    await hang();
  }
  if (bad === "die-in-batch") process.exit(5);
  if (bad === "sigkill-itself") process.kill(process.pid, "SIGKILL");
  if (bad === "exit-70") {
    error({ kind: "crash", retry: "restart", message: "CUDA error: an illegal memory access" });
    process.exit(70);
  }
  if (bad === "enospc") return error({ kind: "io", errno: "ENOSPC", message: "no space left on device" });
  if (bad === "oom") return error({ kind: "oom", retry: "smaller", message: "CUDA out of memory" });
  if (bad === "late") {
    // It answers when it is told to end, which is after it was given up.
    process.on("SIGTERM", () => {
      say({
        type: "states",
        id,
        attempt: message.attempt,
        samples: samples.map((s) => one(s)),
        seconds: { forward: 1, write: 1 },
      });
      setImmediate(() => process.exit(0));
    });
    process.stderr.write("waiting to be late\n");
    await hang();
  }

  const fd = openSync(file, "r+");
  for (const sample of samples) {
    const tokens = sample.ids.length;
    if (bad === "die-half" && answers.length >= samples.length / 2) {
      const bytes = states(sample.ids);
      writeSync(fd, bytes, 0, bytes.length >> 1, sample.offset);
      process.exit(6);
    }
    if (values["forward-ms"] !== "0") await new Promise((r) => setTimeout(r, Number(values["forward-ms"])));
    if (bad === "fail-rows" && isBad(sample.row)) failed.push(sample.row);
    else answers.push(one(sample, fd, isBad(sample.row) ? bad : undefined, samples));
    forwards += 1;
    done += tokens;
    say({ type: "progress", id, tokens_done: done, tokens_total: total });
    if (bad === "hang-later") await hang();
    if (bad === "repeat-progress") {
      setInterval(() => say({ type: "progress", id, tokens_done: done, tokens_total: total }), 20);
      await hang();
    }
    if (bad === "progress-backwards") say({ type: "progress", id, tokens_done: 0, tokens_total: total });
  }
  closeSync(fd);
  if (failed.length > 0) error({ kind: "nonfinite", rows: failed, message: "states are not finite" });
  if (failed.length === samples.length) return;

  if (bad === "forgets") answers.pop();
  if (bad === "unknown-row") answers.push({ ...answers[0], row: 999_999 });
  if (bad === "row-twice") answers.push(answers[0]);
  const final = {
    type: "states",
    id: bad === "wrong-id" ? id + 1000 : id,
    attempt: bad === "wrong-attempt" ? message.attempt + 1 : message.attempt,
    samples: answers,
    seconds: { forward: 0.001, write: 0.001 },
  };
  say(final);
  if (bad === "twice") say(final);
  last = samples[0];
}

/** Writes one sample's states and describes them. */
function one({ row, ids, offset }, fd, bad, all = []) {
  // The states of another sample (of the one before, or of the ids shifted by one), honestly described.
  const ran = bad === "other-sample" ? ids.map((id, i) => (last?.ids[i] ?? id) + 1) : ids;
  // The states of its neighbour, described as its own: only somebody who computes it alone finds out.
  const next = all[(all.findIndex((sample) => sample.row === row) + 1) % all.length];
  const neighbour = bad === "mixes-up" && all.length > 1 ? ids.map((id, i) => next.ids[i] ?? id + 5) : null;
  // The states of a buffer that was not filled anew.
  const stale = bad === "repeats" ? ids.map((_, i) => i) : null;
  const bytes = states(neighbour ?? stale ?? ran, bad);
  const written = bad === "too-few-bytes" ? bytes.length - 16 : bytes.length;
  if (fd !== undefined) writeSync(fd, bytes, 0, written, offset);
  return {
    row,
    bytes: written,
    tokens: bad === "wrong-tokens" ? ids.length + 1 : ids.length,
    ids_crc32c: crc32c(Buffer.from(Int32Array.from(ran).buffer)),
    crc32c: crc32c(bytes.subarray(0, written)),
    stats: taps.map((_, tap) => stats(bytes, tap)),
    finite: bad !== "nan",
    constant: bad === "zeros" || bad === "constant",
  };
}

/** [tokens, taps, hidden] bf16, little-endian */
function states(ids, bad) {
  const halves = new Uint16Array(ids.length * taps.length * hidden);
  const float = new Float32Array(1);
  const word = new Uint32Array(float.buffer);
  let at = 0;
  ids.forEach((id, position) => {
    taps.forEach((tap) => {
      for (let unit = 0; unit < hidden; unit += 1) {
        float[0] = Math.sin(id * 0.7 + position * 0.3 + tap + unit * 1.3);
        if (bad === "nan") float[0] = Number.NaN;
        if (bad === "zeros") float[0] = 0;
        if (bad === "constant" || bad === "constant-lie") float[0] = 1.5;
        // One number a tap, and one of them the next that bf16 has.
        if (bad === "near-constant") float[0] = position === 0 && unit === 0 ? 1.5078125 : 1.5;
        if (bad === "drift") float[0] *= 1000;
        halves[at++] = word[0] >>> 16;
      }
    });
  });
  return Buffer.from(halves.buffer);
}

function stats(bytes, tap) {
  const float = new Float32Array(1);
  const word = new Uint32Array(float.buffer);
  let [sum, squares, absmax, count] = [0, 0, 0, 0];
  for (let half = 0; half < bytes.length / 2; half += 1) {
    if (Math.floor(half / hidden) % taps.length !== tap) continue;
    word[0] = bytes.readUInt16LE(half * 2) << 16;
    sum += float[0];
    squares += float[0] ** 2;
    absmax = Math.max(absmax, Math.abs(float[0]));
    count += 1;
  }
  const real = (x) => (Number.isFinite(x) ? x : null);
  return { mean: real(sum / count), rms: real(Math.sqrt(squares / count)), absmax: real(absmax) };
}

function hello() {
  say({
    type: "hello", proto: 1, pid: process.pid, engine: "fake", versions: { node: process.version },
    devices: [{ uuid: values.uuid ?? null, name: "fake", bytes: null }],
  }); // biome-ignore format: one message
}

function countLife(file) {
  appendFileSync(file, "x");
  return readFileSync(file).length;
}
