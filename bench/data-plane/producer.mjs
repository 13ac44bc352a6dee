// Thread: what an engine child does with finished states, into the part file: write them, and say their CRC.
import { closeSync, openSync, writeSync } from "node:fs";
import { parentPort } from "node:worker_threads";
import { crc32c } from "../../dist/base/checksum.js";

/** As the engines do it: what was hashed is still in the processor's cache when it is written. */
const SLICE_BYTES = 512 * 1024;
let states = null;
parentPort.on("message", ({ id, part, samples }) => {
  const bytesMax = Math.max(...samples.map(({ statesBytes }) => statesBytes));
  if (!states || states.length < bytesMax) {
    states = Buffer.alloc(bytesMax);
    for (let i = 0; i < bytesMax; i += 1) states[i] = (i * 2654435761) >>> 24;
  }
  const fd = openSync(part, "r+");
  const crcs = samples.map(({ statesByte, statesBytes }) => {
    let crc = 0;
    for (let done = 0; done < statesBytes; ) {
      const slice = states.subarray(done, Math.min(statesBytes, done + SLICE_BYTES));
      crc = crc32c(slice, crc);
      for (let written = 0; written < slice.length; ) {
        written += writeSync(fd, slice, written, slice.length - written, statesByte + done + written);
      }
      done += slice.length;
    }
    return crc;
  });
  closeSync(fd);
  parentPort.postMessage({ id, crcs });
});
