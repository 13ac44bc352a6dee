import { EXIT, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { PackLayout } from "../pack/layout.ts";
import type { ReadyPack } from "./reservation.ts";
import type { Spool } from "./spool.ts";

export interface Recovered {
  /** Whole and ours: to be uploaded, never computed again. */
  good: { pack: ReadyPack; layout: PackLayout }[];
  /** Batches whose file was spoiled (a power cut, a bad disk): now in quarantine/, to be computed again. */
  spoiled: { batch: number; reason: string }[];
}

/**
 * Checks every file that was in ready/ at the start: its size by the plan, its header, its run, every CRC.
 * `layoutOf` answers null for a batch that the plan does not have. The caller enqueues what is good with `lookFirst`:
 * the crash may have come after its PUT.
 */
export async function recoverReady(options: {
  spool: Spool;
  identity: string;
  layoutOf: (batch: number) => PackLayout | null;
  log: Log;
}): Promise<Recovered> {
  const { spool, identity, layoutOf, log } = options;
  const recovered: Recovered = { good: [], spoiled: [] };
  for (const found of spool.takeFound()) {
    const layout = layoutOf(found.batch);
    try {
      if (!layout) throw notPlanned(found);
      const crc32c = await spool.checkReady(found, { identity, layout });
      recovered.good.push({ pack: { ...found, crc32c }, layout });
    } catch (error) {
      // Only bytes condemn a file; a disk that cannot be read now is the caller's to report.
      if (!(error instanceof RunError) || (error.exit !== EXIT.integrity && error.exit !== EXIT.identity))
        throw error;
      log.warn("spool.spoiled", { batch: found.batch, reason: error.message });
      await spool.quarantine(found.batch);
      recovered.spoiled.push({ batch: found.batch, reason: error.message });
    }
  }
  return recovered;
}

function notPlanned(found: ReadyPack): RunError {
  return new RunError({
    op: "check spool",
    subject: found.path,
    message: `the plan has no batch ${found.batch}`,
    exit: EXIT.integrity,
  });
}
