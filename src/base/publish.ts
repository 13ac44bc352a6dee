import { randomBytes } from "node:crypto";
import { closeSync, fsyncSync, linkSync, openSync, renameSync, rmSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { errnoOf } from "./errors.ts";

/**
 * The one durable create-only publish: temporary beside it -> write -> fsync -> link -> fsync the directory.
 * `link` and not `rename`, which would overwrite silently. Returns false, leaving what is there, where `path`
 * exists. On any failure the temporary is removed and `path` does not exist (or is whole).
 */
export function publishNew(path: string, chunks: Uint8Array | readonly Uint8Array[]): boolean {
  const temporary = writeTemporary(path, chunks);
  try {
    linkSync(temporary, path);
  } catch (error) {
    if (errnoOf(error) === "EEXIST") return false;
    throw error;
  } finally {
    rmSync(temporary, { force: true });
  }
  fsyncDirectory(dirname(path));
  return true;
}

/** As publishNew, but replaces what is there: for local caches and heartbeats only, never for committed data. */
export function publishReplacing(path: string, chunks: Uint8Array | readonly Uint8Array[]): void {
  const temporary = writeTemporary(path, chunks);
  try {
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
  fsyncDirectory(dirname(path));
}

/** Makes names created in or removed from `directory` survive a power cut. */
export function fsyncDirectory(directory: string): void {
  const fd = openSync(directory, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Writes all of `bytes` at `position` (null: at the file's own position); a short write is continued. */
export function writeAllSync(fd: number, bytes: Uint8Array, position: number | null): void {
  for (let done = 0; done < bytes.length; ) {
    done += writeSync(fd, bytes, done, bytes.length - done, position === null ? null : position + done);
  }
}

function writeTemporary(path: string, chunks: Uint8Array | readonly Uint8Array[]): string {
  const temporary = `${path}.${randomBytes(6).toString("hex")}.tmp`;
  const fd = openSync(temporary, "wx", 0o600);
  try {
    for (const chunk of chunks instanceof Uint8Array ? [chunks] : chunks) writeAllSync(fd, chunk, null);
    fsyncSync(fd);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  } finally {
    closeSync(fd);
  }
  return temporary;
}
