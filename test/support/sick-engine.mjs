// Preloaded into onnx engines (--engine-env NODE_OPTIONS=--import=sick-engine.mjs): a real engine that misbehaves.
// FOREBAY_TEST_SICK = {mode, rows, device, delayMs, once}:
//   fail-rows   says of `rows` (null: of all) that their states are not finite
//   flip        changes a byte in the file after its CRC was taken; `once` is a file that is there when it was done
//   slow        takes `delayMs` longer for each request
// `device`: only in the engine that was given this one (--devices 0,1); null: in all.
import fs from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { parentPort } from "node:worker_threads";

const sick = JSON.parse(process.env.FOREBAY_TEST_SICK ?? "{}");
const isMine = sick.device == null || sick.device === process.env.CUDA_VISIBLE_DEVICES;

// The thread that computes is the one with a parent port.
if (parentPort && isMine) {
  if (sick.mode === "flip") flipOnce();
  const post = parentPort.postMessage.bind(parentPort);
  parentPort.postMessage = (answer) => {
    if (answer.type !== "states" || sick.mode === "flip") return post(answer);
    if (sick.delayMs) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, sick.delayMs);
    if (sick.mode !== "fail-rows") return post(answer);
    const isBad = ({ row }) => sick.rows === null || sick.rows.includes(row);
    const rows = answer.samples.filter(isBad).map(({ row }) => row);
    const { id } = answer;
    const message = "states are not finite";
    if (rows.length > 0)
      post({ type: "error", id, rows, kind: "nonfinite", errno: null, message, retry: "no" });
    if (rows.length < answer.samples.length)
      post({ ...answer, samples: answer.samples.filter((s) => !isBad(s)) });
  };
}

function flipOnce() {
  const { writeSync, existsSync, writeFileSync } = fs;
  fs.writeSync = (fd, bytes, offset, length, position) => {
    const written = writeSync(fd, bytes, offset, length, position);
    if (position > 0 && !existsSync(sick.once)) {
      writeFileSync(sick.once, "");
      writeSync(fd, Uint8Array.of(bytes[offset] ^ 1), 0, 1, position);
    }
    return written;
  };
  syncBuiltinESMExports();
}
