import { readSync } from "node:fs";
import type { FileHandle } from "node:fs/promises";
import { EXIT, RunError } from "./errors.ts";

/** Node's file calls take less than 2 GiB at a time. */
const READ_BYTES_MAX = 2 ** 30;

export interface ReadFrom {
  startByte: number;
  /** Named in the error. */
  path: string;
  /** The error for a file that ends first, at `endByte`. Default: a RunError, exit integrity, with both lengths. */
  cut?: (endByte: number) => Error;
}

/**
 * Fills `into` from `startByte` on, however little each system call gives, and returns it.
 * Throws what `from.cut` makes where the file ends first, else only what the system throws; `into` is spoiled then.
 */
export function readExactlySync<T extends Uint8Array>(fd: number, into: T, from: ReadFrom): T {
  const filled = readUpToSync(fd, into, from.startByte);
  if (filled < into.byteLength) throw cutError(from, filled, into.byteLength);
  return into;
}

/** As `readExactlySync`, of an open handle. */
export async function readExactly<T extends Uint8Array>(
  handle: FileHandle,
  into: T,
  from: ReadFrom,
): Promise<T> {
  const filled = await readUpTo(handle, into, from.startByte);
  if (filled < into.byteLength) throw cutError(from, filled, into.byteLength);
  return into;
}

/** Fills `into` from `startByte` on and returns how many bytes it has now: fewer only where the file ends. */
export function readUpToSync(fd: number, into: Uint8Array, startByte: number): number {
  let filled = 0;
  while (filled < into.byteLength) {
    const bytes = Math.min(READ_BYTES_MAX, into.byteLength - filled);
    const read = readSync(fd, into, filled, bytes, startByte + filled);
    if (read === 0) break;
    filled += read;
  }
  return filled;
}

/** As `readUpToSync`, of an open handle. */
export async function readUpTo(handle: FileHandle, into: Uint8Array, startByte: number): Promise<number> {
  let filled = 0;
  while (filled < into.byteLength) {
    const bytes = Math.min(READ_BYTES_MAX, into.byteLength - filled);
    const { bytesRead } = await handle.read(into, filled, bytes, startByte + filled);
    if (bytesRead === 0) break;
    filled += bytesRead;
  }
  return filled;
}

function cutError({ startByte, path, cut }: ReadFrom, filled: number, bytes: number): Error {
  const endByte = startByte + filled;
  if (cut) return cut(endByte);
  return new RunError({
    op: "read file",
    subject: path,
    message: `the file ends at byte ${endByte}, expected ${startByte + bytes}`,
    exit: EXIT.integrity,
  });
}
