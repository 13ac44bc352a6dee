import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync } from "node:fs";

/** A file system of its own, so that filling or freezing it harms nobody else. */
export interface SmallDisk {
  path: string;
  readOnly(): void;
  readWrite(): void;
  remove(): void;
}

/** Throws what to do where the tests do not run as root. */
export function needRoot(what: string): void {
  if (process.getuid?.() !== 0) throw new Error(`${what} needs root: run the tests in a container`);
}

/** A tmpfs of `size` ("1m", or with more options) mounted at `path`. Throws what to do where that cannot be. */
export function smallDisk(path: string, size: string): SmallDisk {
  needRoot("mounting a small tmpfs");
  mkdirSync(path, { recursive: true });
  try {
    execFileSync("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", path], { stdio: "pipe" });
  } catch (cause) {
    throw new Error("a small tmpfs cannot be mounted: a container needs --cap-add SYS_ADMIN", { cause });
  }
  const remount = (mode: string) => execFileSync("mount", ["-o", `remount,${mode}`, path]);
  return {
    path,
    readOnly: () => void remount("ro"),
    readWrite: () => void remount("rw"),
    remove: () => {
      execFileSync("umount", ["--lazy", path]);
      rmSync(path, { recursive: true, force: true });
    },
  };
}
