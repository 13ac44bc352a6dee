import { readFileSync } from "node:fs";
import { z } from "zod";

/**
 * One process, told apart from a later one that got the same pid: the boot it lived in, and its start time in clock
 * ticks since that boot (field 22 of /proc/<pid>/stat).
 */
export const ProcessIdentity = z.object({
  pid: z.number().int().positive(),
  bootId: z.string(),
  startTicks: z.number().int().nonnegative(),
});
export type ProcessIdentity = z.infer<typeof ProcessIdentity>;

/** Throws where no such process lives. */
export function identifyProcess(pid: number): ProcessIdentity {
  const startTicks = startTicksOf(pid);
  if (startTicks === null) throw new Error(`no process ${pid}`);
  return { pid, bootId: bootId(), startTicks };
}

export function isProcessAlive(identity: ProcessIdentity): boolean {
  return identity.bootId === bootId() && startTicksOf(identity.pid) === identity.startTicks;
}

/** Sends `signal` to exactly this process; false where it is gone. */
export function signalProcess(identity: ProcessIdentity, signal: NodeJS.Signals): boolean {
  if (!isProcessAlive(identity)) return false;
  try {
    return process.kill(identity.pid, signal);
  } catch {
    // It ended between the look and the signal.
    return false;
  }
}

function bootId(): string {
  return readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
}

/** null where the process is gone, or is a zombie: dead, only not yet waited for. */
function startTicksOf(pid: number): number | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The command name stands in parentheses and may hold anything, parentheses included.
    const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
    return fields[0] === "Z" || fields[0] === "X" ? null : Number(fields[19]);
  } catch {
    return null;
  }
}
