import { z } from "zod";
import { crc32c } from "../base/checksum.ts";
import { skipsKey } from "../store/keys.ts";
import type { Store } from "../store/store.ts";

export interface SkippedRow {
  row: number;
  reason: string;
}

/** `skips/<batch>.json`: rows of a batch that no engine could do, with their whole reasons. */
const SkipsFile = z.object({
  format: z.literal("forebay-skips-1"),
  run_id: z.string(),
  batch: z.number().int().nonnegative(),
  rows: z.array(z.object({ row: z.number().int().nonnegative(), reason: z.string() })),
});

/**
 * Puts the runtime skips of a batch, before its pack may leave for the store. Until the pack is there the file is
 * only a note: a later attempt that skips other rows replaces it, and the pack's own header is what counts.
 */
export async function putSkips(
  store: Store,
  file: { runId: string; batch: number; rows: SkippedRow[] },
  signal?: AbortSignal,
): Promise<void> {
  const json: z.infer<typeof SkipsFile> = {
    format: "forebay-skips-1",
    run_id: file.runId,
    batch: file.batch,
    rows: file.rows,
  };
  const body = Buffer.from(`${JSON.stringify(json)}\n`);
  await store.put(skipsKey(file.batch), body, { crc32c: crc32c(body), createOnly: false, signal });
}

/** Runtime skips of committed batches, as their skips files have them. A file that cannot be read counts for nothing. */
export async function readSkips(
  store: Store,
  batches: readonly number[],
  signal?: AbortSignal,
): Promise<SkippedRow[]> {
  const skipped: SkippedRow[] = [];
  for (const batch of batches) {
    const bytes = await store.get(skipsKey(batch), null, signal);
    const parsed = bytes && SkipsFile.safeParse(jsonOrNull(bytes));
    if (parsed?.success) skipped.push(...parsed.data.rows);
  }
  return skipped;
}

function jsonOrNull(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString("utf8"));
  } catch {
    return null;
  }
}
