// Preloaded into a supervisor and its worker threads (NODE_OPTIONS=--import=kill-at.mjs; engines get none): a real SIGKILL
// of the process at an exact place. FOREBAY_TEST_KILL = {point, nth, delayMs, counter}: the nth time that `point` is
// passed, over all threads (they count in the file `counter`), the process dies, `delayMs` later where that is not 0.
import fs from "node:fs";
import http from "node:http";
import { syncBuiltinESMExports } from "node:module";

const { point: wanted, nth, delayMs, counter } = JSON.parse(process.env.FOREBAY_TEST_KILL);
const { appendFileSync, statSync } = fs;

function pass(point) {
  if (point !== wanted) return;
  appendFileSync(counter, ".");
  if (statSync(counter).size !== nth) return;
  if (delayMs === 0) die();
  else setTimeout(die, delayMs);
}

function die() {
  process.kill(process.pid, "SIGKILL");
  // Nothing after this line may run: the signal may take a moment to arrive.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
}

const parts = new Set();
wrap("openSync", (call, path, flags, ...rest) => {
  const fd = call(path, flags, ...rest);
  if (!/\/parts\/[^/]+\.part$/.test(String(path))) return fd;
  const creates = typeof flags === "number" ? (flags & fs.constants.O_CREAT) !== 0 : /[wa]/.test(flags);
  if (creates) pass("compute");
  else parts.add(fd);
  return fd;
});
wrap("writeSync", (call, fd, ...rest) => {
  if (parts.has(fd)) pass("pack");
  return call(fd, ...rest);
});
wrap("closeSync", (call, fd) => {
  parts.delete(fd);
  return call(fd);
});
wrap("renameSync", (call, from, to) => {
  const isReady = /\/ready\//.test(String(to));
  if (isReady) pass("rename");
  call(from, to);
  if (isReady) pass("ready");
});
for (const name of ["rmSync", "unlinkSync"]) {
  wrap(name, (call, path, ...rest) => {
    const isReady = /\/ready\/[^/]+\.safetensors$/.test(String(path));
    if (isReady) pass("unlink");
    call(path, ...rest);
    if (isReady) pass("unlinked");
  });
}

wrap("linkSync", (call, from, to) => {
  const isPack = /\/packs\//.test(String(to));
  if (isPack) pass("link");
  call(from, to);
  if (isPack) pass("linked");
});

const { request } = http;
http.request = (...args) => {
  const options = args.find((argument) => typeof argument === "object" && !(argument instanceof URL)) ?? {};
  const isPack = /\/packs\//.test(options.path ?? "");
  const kind = isPack ? { PUT: "put", HEAD: "verify" }[options.method] : undefined;
  if (kind) pass(kind);
  const sent = request(...args);
  if (kind) {
    sent.prependListener("response", () => pass(`${kind}-answered`));
    if (kind === "put") sent.once("finish", () => pass("put-sent"));
  }
  return sent;
};
syncBuiltinESMExports();

function wrap(name, around) {
  const call = fs[name];
  fs[name] = (...args) => around(call, ...args);
}
