import { crc32c } from "../base/checksum.ts";
import { RunError } from "../base/errors.ts";

/** Every key of a run is made here, from numbers and hashes only; what is read back must match one strict form. */

export const RUN_JSON = "run.json";
export const INDEX_FILE = "index.safetensors";
export const PACKS_PREFIX = "packs/";
export const SKIPS_PREFIX = "skips/";

/** `packs/<3 hex>/<batch, 8 digits>.safetensors`; the hex spreads keys over the store's partitions. */
export function packKey(batch: number): string {
  return `${PACKS_PREFIX}${laneOf(batch)}/${batchName(batch)}.safetensors`;
}

/** The batch that a key names, or null where the key is not exactly what packKey makes. */
export function batchOfPackKey(key: string): number | null {
  const match = /^packs\/[0-9a-f]{3}\/(\d{8,})\.safetensors$/.exec(key);
  if (!match) return null;
  const batch = Number(match[1]);
  return packKey(batch) === key ? batch : null;
}

export function skipsKey(batch: number): string {
  return `${SKIPS_PREFIX}${batchName(batch)}.json`;
}

/** The batch that a skips key names, or null where the key is not exactly what skipsKey makes. */
export function batchOfSkipsKey(key: string): number | null {
  const match = /^skips\/(\d{8,})\.json$/.exec(key);
  return match && skipsKey(Number(match[1])) === key ? Number(match[1]) : null;
}

/** Batch numbers as they stand in keys and spool file names. */
export function batchName(batch: number): string {
  return String(batch).padStart(8, "0");
}

export function planKey(planHash: string): string {
  return `plan-${planHash.slice(0, 16)}.safetensors`;
}

export function rowsKey(rowsHash: string): string {
  return `inputs/rows-${rowsHash.slice(0, 16)}.safetensors`;
}

export function attachmentKey(fileName: string): string {
  return `inputs/${fileName}`;
}

export function statusKey(part: { index: number; count: number }): string {
  return `status/${part.index}-of-${part.count}.json`;
}

/** The 16 prefixes that partition all packs, for parallel LISTs. */
export function packLanes(): string[] {
  return Array.from({ length: 16 }, (_, lane) => `${PACKS_PREFIX}${lane.toString(16)}`);
}

function laneOf(batch: number): string {
  return (crc32c(Buffer.from(batchName(batch))) & 0xfff).toString(16).padStart(3, "0");
}

/** Whether a key outside packs/ and skips/ is one that a run writes. */
export function isOwnKey(key: string): boolean {
  return (
    key === RUN_JSON ||
    key === INDEX_FILE ||
    /^plan-[0-9a-f]{16}\.safetensors$/.test(key) ||
    /^status\/\d+-of-\d+\.json$/.test(key) ||
    /^(inputs|checkpoints)\/[^/]/.test(key) ||
    // Left by a start that was killed at its probe; the next probes remove it.
    /^probe\/[0-9a-f]{16}\/\d+$/.test(key)
  );
}

/** S3's own limit on a whole key, in bytes of UTF-8. */
const KEY_BYTES_MAX = 1024;

/**
 * Refuses every key that could mean something else somewhere: empty, "." or ".." segments, slashes at the ends, a
 * backslash, anything but printable ASCII. Stores ask this of each key, however it was made.
 */
export function checkKey(key: string, address: string): void {
  const isPlain = /^[\x20-\x5b\x5d-\x7e]+$/.test(key) && key.length <= KEY_BYTES_MAX;
  if (isPlain && key.split("/").every((segment) => !/^\.{0,2}$/.test(segment))) return;
  throw new RunError({
    op: "use key",
    subject: address,
    message: `expected a plain relative key, found ${JSON.stringify(key.slice(0, 200))}`,
    hint: "keys are built from numbers and hashes; attached files need plain names",
  });
}
