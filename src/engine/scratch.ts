import { mkdir, open } from "node:fs/promises";
import { join } from "node:path";
import { EXIT, errnoOf, isOutOfSpace, RunError } from "../base/errors.ts";

const ZEROS = Buffer.alloc(2 ** 20);

/**
 * A scratch file of `bytes` zeros, made anew. They are really written, so that a full disk is met here and not by the
 * engine, which would be blamed for it: a RunError with the remedy "retry".
 */
export async function makeScratch(directory: string, name: string, bytes: number): Promise<string> {
  const file = join(directory, `${name}.bin`);
  try {
    await mkdir(directory, { recursive: true, mode: 0o700 });
    await writeZeros(file, bytes);
  } catch (error) {
    throw new RunError({
      op: "make scratch file",
      subject: file,
      message: `${bytes} bytes could not be written (${errnoOf(error)})`,
      safe: "committed packs and the spool are untouched",
      hint: "free space on the disk of the run directory, or give another by --run-dir",
      remedy: isOutOfSpace(error) ? "retry" : "stop",
      exit: EXIT.disk,
      cause: error,
    });
  }
  return file;
}

/** In pieces, and not by the thread that serves the engines: a known row of a large model has 50 MB. */
async function writeZeros(file: string, bytes: number): Promise<void> {
  const handle = await open(file, "w", 0o600);
  try {
    for (let at = 0; at < bytes; ) {
      const { bytesWritten } = await handle.write(ZEROS, 0, Math.min(ZEROS.length, bytes - at), at);
      at += bytesWritten;
    }
  } finally {
    await handle.close();
  }
}
