import { createHash } from "node:crypto";
import type { SourceKind } from "./rows.ts";

/*
 * The one flat file that every dataset becomes: safetensors with `input_ids` I32 [tokens], `offsets` I64 [rows + 1]
 * (in tokens, from 0) and, where the dataset has one, `loss_mask` U8 [tokens]. Where tokens is odd a one-element
 * `padding` I32 stands before `offsets`, since torch refuses int64 views that are not aligned to 8 bytes.
 */
export const ROWS_FORMAT = "forebay-rows-1";

export interface RowsFileInfo {
  /** The dataset row that the file's first row is. Row numbers everywhere count from the dataset's start. */
  firstRow: number;
  rows: number;
  tokens: number;
  /** Greatest and smallest id; -1 where all rows are empty. */
  maxId: number;
  minId: number;
  /** Tokens of the longest row. */
  longest: number;
  /** Rows equal to an earlier one, ids and mask. */
  duplicates: number;
  /** sha256 of the content (contentHash): the dataset's identity, whatever format it came from. */
  hash: string;
  hasMask: boolean;
  sourceKind: SourceKind;
}

/** What a rows file's hash covers; ids, masks and offsets each by their own sha256, as one pass can make them. */
export function contentHash(parts: {
  firstRow: number;
  ids: Buffer;
  mask: Buffer | null;
  offsets: Buffer;
}): string {
  const hash = createHash("sha256").update(`${ROWS_FORMAT}\n${parts.firstRow}\n`);
  for (const part of [parts.ids, parts.mask, parts.offsets])
    hash.update(part ? `${part.toString("hex")}\n` : "none\n");
  return hash.digest("hex");
}
