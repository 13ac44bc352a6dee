import { EXIT, errnoOf, isOutOfSpace, RunError } from "../base/errors.ts";

/** A system error on the spool as a person reads it; what passes by itself has the remedy "retry". */
export function describeDisk(error: unknown, path: string): unknown {
  const errno = errnoOf(error);
  // Node's own codes (ERR_...) are no faults of the disk.
  if (!errno || !/^E[A-Z0-9]+$/.test(errno) || (error instanceof RunError && error.exit !== EXIT.disk))
    return error;
  const known = DISK_FAULTS[errno];
  const described = new RunError({
    op: "use spool",
    subject: path,
    message: known ? `${known.message} (${errno})` : error instanceof Error ? error.message : errno,
    safe: "packs in ready/ and in the store are not harmed",
    hint: known?.hint,
    remedy: isOutOfSpace(error) || errno === "EMFILE" ? "retry" : "stop",
    exit: EXIT.disk,
    cause: error,
  });
  return Object.assign(described, { code: errno });
}

const DISK_FAULTS: Record<string, { message: string; hint: string }> = {
  ENOSPC: { message: "the disk is out of space or inodes", hint: "free some: the run goes on by itself" },
  EDQUOT: { message: "the disk quota is used up", hint: "free some: the run goes on by itself" },
  EROFS: {
    message: "the file system is read-only",
    hint: "remount it writable, or give --spool another disk",
  },
  EIO: { message: "the disk failed", hint: "look at dmesg, and give --spool another disk" },
  EACCES: { message: "no permission", hint: "give --spool a directory that this user may write" },
  EPERM: { message: "not permitted", hint: "give --spool a directory that this user may write" },
  ENOTDIR: { message: "expected a directory", hint: "give --spool the path of a directory" },
  EEXIST: { message: "something else stands there", hint: "give --spool the path of a directory" },
  EMFILE: { message: "too many open files", hint: "raise ulimit -n" },
};
