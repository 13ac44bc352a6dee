import { createServer } from "node:net";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";

export interface SpoolLock {
  release(): Promise<void>;
}

/**
 * Holds the spool directory for this process: an abstract unix socket named by the directory's device and inode.
 * Linux drops it with the process, however that dies, so there is never a stale lock. It is seen by every process
 * of this network namespace; a container beside us that shares only the disk is kept out by the heartbeat in the store.
 * Throws RunError (exit locked) where another process holds it.
 */
export function lockSpool(directory: { path: string; dev: string; ino: string }): Promise<SpoolLock> {
  const name = `\0forebay-spool-${directory.dev}-${directory.ino}`;
  const server = createServer((socket) => socket.destroy());
  return new Promise((resolve, reject) => {
    server.once("error", (cause) => {
      reject(
        errnoOf(cause) === "EADDRINUSE"
          ? new RunError({
              op: "lock spool",
              subject: directory.path,
              message: "another process on this machine is using this spool",
              safe: "nothing was changed",
              hint: "stop that run first (forebay stop ADDRESS), or give this one another --spool directory",
              exit: EXIT.locked,
              cause,
            })
          : new RunError({
              op: "lock spool",
              subject: directory.path,
              message: "the spool's lock socket could not be opened",
              exit: EXIT.disk,
              cause,
            }),
      );
    });
    server.listen({ path: name }, () => {
      server.unref();
      resolve({ release: () => new Promise((done) => server.close(() => done())) });
    });
  });
}
