// Thread: what an engine child does with finished states, into the part file: write them, and say their CRC.
import { closeSync, openSync, writeSync } from "node:fs";
import { parentPort } from "node:worker_threads";
import { crc32c } from "../../dist/base/checksum.js";

let states = null;
parentPort.on("message", ({ id, part, samples }) => {
  const bytesMax = Math.max(...samples.map(({ statesBytes }) => statesBytes));
  if (!states || states.length < bytesMax) {
    states = Buffer.alloc(bytesMax);
    for (let i = 0; i < bytesMax; i += 1) states[i] = (i * 2654435761) >>> 24;
  }
  const fd = openSync(part, "r+");
  const crcs = samples.map(({ statesByte, statesBytes }) => {
    const bytes = states.subarray(0, statesBytes);
    for (let done = 0; done < statesBytes; ) {
      done += writeSync(fd, bytes, done, statesBytes - done, statesByte + done);
    }
    return crc32c(bytes);
  });
  closeSync(fd);
  parentPort.postMessage({ id, crcs });
});
