import { readFileSync, statSync } from "node:fs";
import { z } from "zod";
import type { HistoryPoint } from "../run/status.ts";
import { type History, type HistoryColumns, pointsOf } from "./history.ts";

/** The charts' past as it stands in the run directory, so that a supervisor killed at night leaves it to the next. */
export interface KeptHistory {
  /** `run.id` of the document; "" before it is known. */
  run: string;
  points: HistoryPoint[];
}

/** A full history has some 13,000 points of 11 short numbers: under a megabyte. */
const FILE_BYTES_MAX = 16 * 2 ** 20;

const Columns = z
  .object({ t: z.array(z.number()) })
  .catchall(z.array(z.number().nullable()))
  .refine((columns) => Object.values(columns).every((column) => column.length === columns.t.length));
const HistoryFile = z.object({ version: z.literal(1), run: z.string(), columns: Columns });

export function encodeHistory(run: string, history: History): string {
  return JSON.stringify({ version: 1, run, columns: history.since(0, Number.POSITIVE_INFINITY) });
}

/** Nothing where there is no file, or it is torn, of another version, or somebody else's: it is a cache. */
export function readHistory(path: string, nowS: number): KeptHistory {
  try {
    if (statSync(path).size > FILE_BYTES_MAX) return { run: "", points: [] };
    const { run, columns } = HistoryFile.parse(JSON.parse(readFileSync(path, "utf8")));
    // What a clock that went wrong left in the future would keep everything that comes now out of the charts.
    const points = pointsOf(columns as HistoryColumns).filter(({ t }) => t < nowS);
    return { run, points };
  } catch {
    return { run: "", points: [] };
  }
}
