import { type FileHandle, open } from "node:fs/promises";
import { ioBuffer } from "../base/io-buffer.ts";
import { cannotRead } from "./file-window.ts";
import { badDataset } from "./rows.ts";

/** A line must fit in memory. 256 MiB holds a row of ten million tokens with its mask, above any model's positions. */
const LINE_BYTES_MAX = 256 * 1024 * 1024;

const CHUNK_BYTES = 2 * 1024 * 1024;

/** Whole lines of a file; blank ones are left out. Valid until the next chunk is asked for. */
export interface Lines {
  bytes: Buffer;
  /** [lines], each line is bytes[starts[i], ends[i]), without its end mark. */
  starts: number[];
  ends: number[];
  /** [lines], counted from 1 as editors do, blank lines included. */
  numbers: number[];
}

/** Streams a text file's lines in bounded memory. A last line without an end mark counts. */
export async function* readLines(
  path: string,
  options: { signal?: AbortSignal; lineBytesMax?: number } = {},
): AsyncGenerator<Lines> {
  const { signal, lineBytesMax = LINE_BYTES_MAX } = options;
  let handle: FileHandle;
  try {
    handle = await open(path, "r");
  } catch (cause) {
    throw cannotRead(path, cause);
  }
  try {
    let buffer = ioBuffer(CHUNK_BYTES);
    let held = 0;
    let number = 1;
    let fileByte = 0;
    for (;;) {
      signal?.throwIfAborted();
      const { bytesRead } = await handle.read(buffer, held, buffer.length - held, null);
      if (fileByte === 0 && bytesRead >= 3 && buffer.readUIntBE(0, 3) === 0xefbbbf) buffer.fill(0x20, 0, 3);
      fileByte += bytesRead;
      // Everything before `held` was searched already.
      const searchFrom = held;
      held += bytesRead;
      const isLast = bytesRead === 0;
      const lines: Lines = { bytes: buffer, starts: [], ends: [], numbers: [] };
      let start = 0;
      for (let from = searchFrom; ; ) {
        const found = buffer.subarray(0, held).indexOf(0x0a, from);
        const end = found >= 0 ? found : isLast && start < held ? held : -1;
        if (end < 0) break;
        if (!isBlank(buffer, start, end)) {
          lines.starts.push(start);
          lines.ends.push(end);
          lines.numbers.push(number);
        }
        number += 1;
        start = end + 1;
        from = start;
        if (start > held) break;
      }
      if (lines.starts.length > 0) yield lines;
      if (isLast) return;
      const rest = Math.max(0, held - start);
      if (rest > lineBytesMax) {
        throw badDataset(path, `line ${number}: longer than ${lineBytesMax} bytes`, {
          hint: "expected one JSON object a line; a file that is one large array can be split by jq -c '.[]'",
        });
      }
      if (start === 0 && held === buffer.length) {
        const larger = ioBuffer(2 * buffer.length);
        buffer.copy(larger, 0, 0, held);
        buffer = larger;
      } else if (rest < CHUNK_BYTES / 2 && buffer.length > CHUNK_BYTES) {
        // One long line must not keep its room for the rest of the file.
        const smaller = ioBuffer(CHUNK_BYTES);
        buffer.copy(smaller, 0, start, held);
        buffer = smaller;
      } else {
        buffer.copyWithin(0, start, held);
      }
      held = rest;
    }
  } finally {
    await handle.close();
  }
}

function isBlank(bytes: Uint8Array, start: number, end: number): boolean {
  for (let i = start; i < end; i += 1) {
    const byte = bytes[i];
    if (byte !== 0x20 && byte !== 0x09 && byte !== 0x0d) return false;
  }
  return true;
}
