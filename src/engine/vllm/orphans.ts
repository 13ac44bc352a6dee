import { createHash } from "node:crypto";
import { readdirSync, readlinkSync, rmSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";

/**
 * Files of requests that nobody waits for any more. vLLM puts our request id into the file's name, and the id tells
 * the machine and the process that asked.
 */

/** Containers that share a folder may share the host's name too, but not each other's process ids. */
const MACHINE = createHash("sha256").update(`${hostname()} ${pidNamespace()}`).digest("hex").slice(0, 8);
const NAME = /^cmpl-(forebay-([0-9a-f]{8})-(\d+)-\d+)-.*\.safetensors(\.lock)?$/;

/** Ids for this process's requests, none twice. */
export function requestIds(pid: number): () => string {
  let count = 0;
  return () => `forebay-${MACHINE}-${pid}-${count++}`;
}

/**
 * Removes what requests of this process that are not `isOpen`, and any of processes of this machine that are gone,
 * left in `folder`. Returns how many files; one that cannot be removed is left to the next sweep.
 */
export function sweepOrphans(folder: string, pid: number, isOpen: (requestId: string) => boolean): number {
  let removed = 0;
  for (const name of listed(folder)) {
    const match = NAME.exec(name);
    if (!match) continue;
    const [, requestId, machine, owner] = match;
    const isOrphan =
      machine === MACHINE && (Number(owner) === pid ? !isOpen(requestId!) : !isAlive(Number(owner)));
    if (isOrphan && remove(join(folder, name))) removed += 1;
  }
  return removed;
}

/** Both files of one prompt. The lock's goes second: as long as it is there, nobody takes the name. */
export function removeConnectorFiles(path: string): void {
  remove(path);
  remove(`${path}.lock`);
}

function listed(folder: string): string[] {
  try {
    return readdirSync(folder);
  } catch {
    // Not there yet, or not ours to read: then there is nothing that we could sweep.
    return [];
  }
}

function remove(path: string): boolean {
  try {
    rmSync(path, { force: true });
    return true;
  } catch {
    // Another user's folder without write permission: the room check will tell when it fills.
    return false;
  }
}

function pidNamespace(): string {
  try {
    return readlinkSync("/proc/self/ns/pid");
  } catch {
    return "";
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
