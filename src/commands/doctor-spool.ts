import { randomBytes } from "node:crypto";
import { closeSync, fsyncSync, mkdirSync, openSync, rmSync, statfsSync } from "node:fs";
import { join } from "node:path";
import { formatBytes } from "../base/bytes.ts";
import { errnoOf } from "../base/errors.ts";
import { writeAllSync } from "../base/publish.ts";
import { broken, type Finding, ok, weak } from "./doctor-checks.ts";

const TRIAL_BYTES = 256 * 2 ** 20;
const CHUNK_BYTES = 4 * 2 ** 20;
/** f_type of tmpfs and ramfs. Source: statfs(2). */
const IN_MEMORY = new Set([0x01021994, 0x858458f6]);
/** Below this the disk is slower than one GPU makes states. */
const SLOW_MB_PER_S = 200;

/** Writes and fsyncs a trial file where the spool will be; looks at room, inodes and the kind of filesystem. */
export function examineSpool(directory: string, budgetBytes: number): Finding[] {
  const path = join(directory, `.forebay-doctor-${randomBytes(6).toString("hex")}`);
  try {
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    const { bavail, bsize, ffree, files, type } = statfsSync(directory);
    const freeBytes = bavail * bsize;
    const findings = [
      freeBytes >= budgetBytes
        ? ok("spool", `${formatBytes(freeBytes)} free at ${directory}`, { free_bytes: freeBytes })
        : weak(
            "spool",
            `${formatBytes(freeBytes)} free at ${directory}, less than --spool-bytes ${formatBytes(budgetBytes)}`,
            "the run pauses at --disk-floor: lower --spool-bytes, or name another --spool",
            { free_bytes: freeBytes },
          ),
    ];
    if (files > 0 && ffree < 10_000) {
      findings.push(
        weak("spool", `only ${ffree} inodes are free`, "remove small files, or name another --spool"),
      );
    }
    if (IN_MEMORY.has(type)) {
      findings.push(
        weak(
          "spool",
          "it lies in memory (tmpfs)",
          "fast, but gone with the power: packs in it are then computed again",
        ),
      );
    }
    findings.push(timeWrites(path, Math.min(TRIAL_BYTES, Math.floor(freeBytes / 4))));
    return findings;
  } catch (error) {
    return [
      broken(
        "spool",
        `cannot write at ${directory} (${errnoOf(error) ?? "unknown"})`,
        "name a writable directory with --spool, or give this one to you",
      ),
    ];
  } finally {
    rmSync(path, { force: true });
  }
}

function timeWrites(path: string, bytes: number): Finding {
  const chunk = randomBytes(CHUNK_BYTES);
  const fd = openSync(path, "wx", 0o600);
  try {
    const startMs = performance.now();
    for (let done = 0; done < bytes; done += CHUNK_BYTES) writeAllSync(fd, chunk, null);
    const writtenMs = performance.now() - startMs;
    fsyncSync(fd);
    const syncedMs = performance.now() - startMs;
    const rate = (ms: number) => Math.round(bytes / 1e6 / (ms / 1000));
    const figures = { write_mb_per_s: rate(writtenMs), fsync_mb_per_s: rate(syncedMs) };
    const found = `writes ${figures.write_mb_per_s} MB/s, with fsync ${figures.fsync_mb_per_s} MB/s`;
    return figures.write_mb_per_s < SLOW_MB_PER_S
      ? weak("spool", found, "slower than a GPU makes states: a local NVMe disk or tmpfs is better", figures)
      : ok("spool", found, figures);
  } finally {
    closeSync(fd);
  }
}
