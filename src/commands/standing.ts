import { readFileSync } from "node:fs";
import { join } from "node:path";
import { formatBytes } from "../base/bytes.ts";
import { plainText } from "../base/log.ts";
import { askSupervisor } from "../control/channel.ts";
import { FILES, lookAtRunDirectory, type RunDirectory } from "../control/run-directory.ts";
import { StatusDocument } from "../run/status.ts";
import { countText } from "./progress-lines.ts";

/** What a verb finds of a run on this machine. */
export interface Standing {
  look: RunDirectory;
  /** From the living supervisor, else its last word in the run directory; null: none. */
  status: StatusDocument | null;
  /** Whether `status` is the living supervisor's own. */
  live: boolean;
}

export async function standingOf(directory: string): Promise<Standing> {
  const look = lookAtRunDirectory(directory);
  if (look.supervisor?.alive) {
    try {
      const answer = await askSupervisor(look.supervisor.record, { verb: "status" });
      return { look, status: StatusDocument.parse(answer), live: true };
    } catch {
      // It is just starting or just ending: its file serves as well.
    }
  }
  return { look, status: readStatusDocument(directory), live: false };
}

function readStatusDocument(directory: string): StatusDocument | null {
  try {
    return StatusDocument.parse(JSON.parse(readFileSync(join(directory, FILES.status), "utf8")));
  } catch {
    // None, or of another version: status.json is a cache.
    return null;
  }
}

/** What stands, for verbs that are about to change something: committed, ready, engines, disk, GPUs, settings. */
export function standingLines(standing: Standing): string[] {
  const { status, live, look } = standing;
  if (!status) return [`nothing is known of this run on this machine (looked in ${look.path})`];
  const { run, extraction, spool, engines, s3 } = status;
  const { tokens, batches } = extraction;
  const gpus = engines.flatMap(({ gpu }) => (gpu ? [`${gpu.index}: ${gpu.util ?? "?"} %`] : []));
  const settings = Object.entries(run.settings).map(([name, value]) => `${name}=${value}`);
  return [
    `state      ${live ? run.state : `${run.state} (last word, ${status.heartbeat_at})`}${run.reason ? `: ${run.reason}` : ""}`,
    `committed  ${countText(batches.committed)} of ${countText(batches.total)} batches, ` +
      `${countText(extraction.total_processed)} of ${countText(extraction.total)} samples`,
    `ready      ${countText(spool.files)} packs in the spool, ${formatBytes(spool.bytes)} of ${formatBytes(spool.budget_bytes)}`,
    `engines    ${engines.length} with ${countText(batches.in_flight)} batches, ${countText(tokens.in_engine)} tokens`,
    `disk       ${spool.disk_free_bytes === null ? "unknown" : `${formatBytes(spool.disk_free_bytes)} free`} at ${spool.directory}`,
    `gpus       ${gpus.length ? gpus.join(", ") : "none seen"}`,
    `uploads    ${s3.inflight} of ${s3.limit} connections`,
    `settings   ${settings.length ? settings.join(" ") : "all at their defaults"}`,
  ].map((line) => plainText(line).replaceAll("\n", " "));
}
