import { readFileSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { FILES } from "./run-directory.ts";

/** The few fields of the status document that control needs; the document itself belongs to run/. */
export const StatusFields = z.object({
  generated_at: z.string(),
  run: z.object({
    /** "" until settings and inputs were accepted. */
    id: z.string(),
    state: z.string(),
    phase: z.string(),
    reason: z.string().nullable(),
    action: z.string().nullable(),
    page_url: z.string().nullable(),
    started_at: z.string(),
  }),
  extraction: z.object({
    last_commit_at: z.string().nullable(),
    total_processed: z.number(),
    total: z.number(),
  }),
});
export type StatusFields = z.infer<typeof StatusFields>;

/** The supervisor's last word in its run directory, or null. */
export function readStatusFile(directory: string): StatusFields | null {
  try {
    return StatusFields.parse(JSON.parse(readFileSync(join(directory, FILES.status), "utf8")));
  } catch {
    // Not there yet, or of another version: nothing is known, which is what null says.
    return null;
  }
}
