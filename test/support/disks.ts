import { execFileSync } from "node:child_process";
import { mkdirSync, rmSync } from "node:fs";

/** A file system of its own, so that filling or freezing it harms nobody else. */
export interface SmallDisk {
  path: string;
  readOnly(): void;
  readWrite(): void;
  remove(): void;
}

/** A tmpfs of `size` ("1m", or with more options) mounted at `path`. Needs root: throws what to do without. */
export function smallDisk(path: string, size: string): SmallDisk {
  if (process.getuid?.() !== 0)
    throw new Error("mounting a small tmpfs needs root: run the tests in a container");
  mkdirSync(path, { recursive: true });
  execFileSync("mount", ["-t", "tmpfs", "-o", `size=${size}`, "tmpfs", path]);
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
