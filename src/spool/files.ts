import {
  chmodSync,
  closeSync,
  constants,
  existsSync,
  fstatSync,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmdirSync,
  rmSync,
  statfsSync,
  statSync,
  writeSync,
} from "node:fs";
import { basename, dirname, join } from "node:path";
import { EXIT, errnoOf, isOutOfSpace, RunError } from "../base/errors.ts";
import { ioBuffer } from "../base/io-buffer.ts";
import { publishReplacing } from "../base/publish.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { checkPack, FILE_SLICE_BYTES, type PackExpectation } from "../pack/check.ts";
import { finishPack, type PackContents } from "../pack/writer.ts";
import { batchName } from "../store/keys.ts";

/** The spool's file calls, all synchronous: they run in worker threads, never on the main one. */

/** Which run part a spool directory belongs to. `runId` and `part` are compared; the rest is for the reader. */
export interface SpoolOwner {
  runId: string;
  /** "1/1" */
  part: string;
  [fact: string]: string | number;
}

export interface SpoolDirectory {
  /** With symlinks resolved. */
  path: string;
  dev: string;
  ino: string;
  /** On tmpfs: gone with the machine's power. */
  volatile: boolean;
  blockBytes: number;
}

export interface SpoolFile {
  batch: number;
  path: string;
  bytes: number;
}

const OWNER = "owner.json";
const FOLDERS = ["parts", "ready", "quarantine"] as const;
/** Linux TMPFS_MAGIC, include/uapi/linux/magic.h */
const TMPFS_MAGIC = 0x01021994;
const QUARANTINED = /^(\d{8,})\..*\.safetensors$/;
const QUARANTINED_MAX = 3;

/**
 * Makes the directory (0700) or accepts the one that is there.
 * Refuses (exit disk) what is no directory of this user's, or holds files that are not a spool's.
 */
export function openDirectory(directory: string): SpoolDirectory {
  makeDirectory(directory);
  const link = lstatSync(directory);
  const path = realpathSync(directory);
  const stat = statSync(path, { bigint: true });
  const uid = process.getuid?.() ?? Number(stat.uid);
  if (Number(stat.uid) !== uid || (link.isSymbolicLink() && link.uid !== uid && link.uid !== 0)) {
    throw refused(
      directory,
      `the directory belongs to user ${link.isSymbolicLink() ? link.uid : stat.uid}, this is user ${uid}`,
    );
  }
  const names = readdirSync(path);
  if (names.length > 0 && !names.includes(OWNER)) {
    throw refused(directory, `the directory holds other files ("${names[0]}") and no ${OWNER}`);
  }
  chmodSync(path, 0o700);
  const disk = statfsSync(path);
  return {
    path,
    dev: String(stat.dev),
    ino: String(stat.ino),
    volatile: disk.type === TMPFS_MAGIC,
    blockBytes: disk.bsize,
  };
}

/** One level after the other: with `recursive`, Node says ENOENT where the file system is read-only. */
function makeDirectory(path: string): void {
  if (existsSync(path)) return;
  const parent = dirname(path);
  if (parent !== path) makeDirectory(parent);
  try {
    mkdirSync(path, { mode: 0o700 });
  } catch (error) {
    if (errnoOf(error) !== "EEXIST") throw error;
  }
}

/**
 * Takes a locked directory into use: checks the owner, drops what was half written, and returns what is ready.
 * Refuses (exit locked) a spool in which packs of another run or part wait, with everything in it as it was.
 */
export function claimDirectory(options: { path: string; owner: SpoolOwner }): {
  ready: SpoolFile[];
  quarantined: SpoolFile[];
  dropped: number;
} {
  const { path, owner } = options;
  const found = readOwner(path);
  const ready = existsSync(join(path, "ready")) ? readdirSync(join(path, "ready")).length : 0;
  // Without a pack there is nothing of theirs to lose: what an engine was writing is nobody's, the lock is ours.
  if (ready > 0 && found && (found.runId !== owner.runId || found.part !== owner.part)) {
    throw new RunError({
      op: "open spool",
      subject: path,
      message: `the spool belongs to run ${found.runId}, part ${found.part}; this is run ${owner.runId}, part ${owner.part}`,
      safe: "nothing was changed",
      hint: `give this run another --spool directory, or resume that run first: ${ready} of its packs are not in the store yet`,
      exit: EXIT.locked,
    });
  }
  publishReplacing(join(path, OWNER), Buffer.from(`${JSON.stringify(owner)}\n`));
  for (const folder of FOLDERS) {
    const at = join(path, folder);
    mkdirSync(at, { recursive: true, mode: 0o700 });
    if (!lstatSync(at).isDirectory()) throw refused(at, "expected a directory, found something else");
  }
  const parts = readdirSync(join(path, "parts"));
  for (const name of parts) rmSync(join(path, "parts", name), { force: true, recursive: true });
  return {
    ready: listFiles(join(path, "ready"), /^(\d{8,})\.safetensors$/),
    quarantined: listFiles(join(path, "quarantine"), QUARANTINED),
    dropped: parts.length,
  };
}

/**
 * The run is done: takes our folders and the owner's file away, so that another run may use the directory. It stays
 * itself (a person may have made it), and everything stays while a pack or a spoiled file is in it.
 */
export function releaseDirectory(path: string): void {
  for (const folder of ["ready", "quarantine"]) if (readdirSync(join(path, folder)).length > 0) return;
  rmSync(join(path, "parts"), { recursive: true, force: true });
  for (const folder of ["ready", "quarantine"]) rmdirSync(join(path, folder));
  rmSync(join(path, OWNER), { force: true });
}

/** A new file of exactly `bytes`, all zero and sparse; never one that exists, never through a symlink. */
export function createPart(options: { path: string; bytes: number }): void {
  const { O_CREAT, O_EXCL, O_NOFOLLOW, O_RDWR } = constants;
  const fd = openSync(options.path, O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR, 0o600);
  try {
    ftruncateSync(fd, options.bytes);
  } catch (error) {
    rmSync(options.path, { force: true });
    throw error;
  } finally {
    closeSync(fd);
  }
}

/**
 * Writes ids, masks and header around the states that the engine wrote, then renames into ready/: from then on the
 * batch is never computed again here. No fsync: a file that a power cut spoils is caught by its CRCs at the start.
 * Returns the CRC-32C of the whole object, by the engine's account of its states.
 */
export function finishPart(options: { part: string; ready: string; contents: PackContents }): number {
  let crc: number;
  const fd = openSync(options.part, constants.O_RDWR | constants.O_NOFOLLOW);
  try {
    crc = finishPack(fd, options.contents).crc32c;
  } finally {
    closeSync(fd);
  }
  // The lock makes us the only writer here, so looking first is enough to never replace a finished pack.
  if (existsSync(options.ready))
    throw new Error(`${options.ready} exists already: one batch was claimed twice`);
  renameSync(options.part, options.ready);
  return crc;
}

/** Doing it twice is harmless. */
export function dropFile(path: string): void {
  rmSync(path, { force: true });
}

/** Free bytes and inodes for this user. A file system that counts no inodes (btrfs, some network disks) says 0 of 0. */
export function freeSpace(path: string): { bytes: number; inodes: number } {
  const disk = statfsSync(path);
  return {
    bytes: Number(disk.bavail) * Number(disk.bsize),
    inodes: Number(disk.files) === 0 ? Number.POSITIVE_INFINITY : Number(disk.ffree),
  };
}

/** Whether a file of `bytes` can really be made now: quotas do not show in statfs. Leaves nothing behind. */
export function probeSpace(options: { path: string; bytes: number }): boolean {
  const probe = join(options.path, "parts", "probe.part");
  try {
    const fd = openSync(probe, "w", 0o600);
    try {
      const zeros = Buffer.alloc(Math.min(options.bytes, 2 ** 20));
      for (let at = 0; at < options.bytes; at += zeros.length) {
        if (writeSync(fd, zeros, 0, Math.min(zeros.length, options.bytes - at), at) <= 0) return false;
      }
    } finally {
      closeSync(fd);
    }
    return true;
  } catch (error) {
    if (isOutOfSpace(error)) return false;
    throw error;
  } finally {
    rmSync(probe, { force: true });
  }
}

/** Checks a ready file in full, as checkPack, and returns its CRC-32C; the thread is busy until it is done. */
export async function checkFile(options: { path: string; expected: PackExpectation }): Promise<number> {
  const fd = openSync(options.path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    const buffer = ioBuffer(Math.max(FILE_SLICE_BYTES, options.expected.layout.headerBytes));
    const read = (startByte: number, endByte: number) =>
      readExactlySync(fd, buffer.subarray(0, endByte - startByte), { startByte, path: options.path });
    return await checkPack(
      { bytes: fstatSync(fd).size, sliceBytes: FILE_SLICE_BYTES, read },
      options.expected,
      options.path,
    );
  } finally {
    closeSync(fd);
  }
}

/** Moves a spoiled file aside for a person to look at, and keeps only the newest few. Returns what is kept. */
export function quarantine(options: { file: string; directory: string; suffix: string }): SpoolFile[] {
  const name = `${basename(options.file, ".safetensors")}.${options.suffix}.safetensors`;
  renameSync(options.file, join(options.directory, name));
  const kept = listFiles(options.directory, QUARANTINED)
    .map((file) => ({ file, changedMs: statSync(file.path).ctimeMs }))
    .sort((a, b) => b.changedMs - a.changedMs)
    .map(({ file }) => file);
  for (const { path } of kept.splice(QUARANTINED_MAX)) rmSync(path, { force: true });
  return kept;
}

export function readyName(batch: number): string {
  return `${batchName(batch)}.safetensors`;
}

function listFiles(directory: string, form: RegExp): SpoolFile[] {
  return readdirSync(directory)
    .flatMap((name) => {
      const match = form.exec(name);
      const path = join(directory, name);
      const stat = lstatSync(path);
      return match && stat.isFile() ? [{ batch: Number(match[1]), path, bytes: stat.size }] : [];
    })
    .sort((a, b) => a.batch - b.batch);
}

function readOwner(path: string): SpoolOwner | null {
  let text: string;
  try {
    text = readFileSync(join(path, OWNER), "utf8");
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return null;
    throw error;
  }
  try {
    const owner: unknown = JSON.parse(text);
    if (typeof owner === "object" && owner !== null && "runId" in owner && "part" in owner)
      return owner as SpoolOwner;
  } catch {
    // Told below.
  }
  throw refused(join(path, OWNER), "the owner file is not readable as one");
}

function refused(subject: string, message: string): RunError {
  return new RunError({
    op: "open spool",
    subject,
    message,
    safe: "nothing was changed",
    hint: "give --spool a new directory",
    exit: EXIT.disk,
  });
}
