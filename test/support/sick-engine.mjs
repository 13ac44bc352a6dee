// Preloaded into onnx engines (--engine-env NODE_OPTIONS=--import=sick-engine.mjs): a real engine that misbehaves.
// FOREBAY_TEST_SICK = {mode, rows, device, delayMs, loadMs, once}:
//   fail-rows   says of `rows` (null: of all) that their states are not finite
//   wrong-crc   states, but for every sample a CRC that is not theirs
//   flip        changes a byte in the file after its CRC was taken; `once` is a file that is there when it was done
// `device`: only in the engine that was given this one (FOREBAY_DEVICES=0,1). Every engine takes `delayMs` longer for each
// batch, and `loadMs` to load.
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { parentPort } from "node:worker_threads";

const { mode, rows, device, delayMs, loadMs, once } = JSON.parse(process.env.FOREBAY_TEST_SICK ?? "{}");
const isSick = device == null || device === process.env.CUDA_VISIBLE_DEVICES;

// The thread that computes is the one with a parent port.
if (parentPort) {
  if (mode === "flip" && isSick) flipOnce();
  const post = parentPort.postMessage.bind(parentPort);
  parentPort.postMessage = (answer) => {
    if (answer.type === "loaded") pause(loadMs);
    if (answer.type !== "states") return post(answer);
    pause(delayMs);
    if (mode === "fail-rows" && isSick) failRows(answer, post);
    else if (mode === "wrong-crc" && isSick) post({ ...answer, samples: answer.samples.map(wrongCrc) });
    else post(answer);
  };
}

function pause(ms) {
  if (ms) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

function failRows(answer, post) {
  const isBad = ({ row }) => rows == null || rows.includes(row);
  const [bad, good] = [answer.samples.filter(isBad), answer.samples.filter((sample) => !isBad(sample))];
  const fault = { kind: "nonfinite", errno: null, message: "states are not finite", retry: "no" };
  if (bad.length > 0) post({ type: "error", id: answer.id, rows: bad.map(({ row }) => row), ...fault });
  if (good.length > 0) post({ ...answer, samples: good });
}

function wrongCrc(sample) {
  return { ...sample, crc32c: (sample.crc32c ^ 1) >>> 0 };
}

function flipOnce() {
  const { writeSync, existsSync, writeFileSync } = fs;
  fs.writeSync = (fd, bytes, offset, length, position) => {
    const written = writeSync(fd, bytes, offset, length, position);
    if (position > 0 && !existsSync(once)) {
      writeFileSync(once, "");
      writeSync(fd, Uint8Array.of(bytes[offset] ^ 1), 0, 1, position);
    }
    return written;
  };
  syncBuiltinESMExports();
}
