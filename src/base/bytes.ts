import { EXIT, RunError } from "./errors.ts";

/** A byte range [startByte, endByte). */
export interface ByteRange {
  startByte: number;
  endByte: number;
}

const UNIT_BYTES: Record<string, number> = {
  "": 1,
  b: 1,
  k: 1e3,
  kb: 1e3,
  kib: 2 ** 10,
  m: 1e6,
  mb: 1e6,
  mib: 2 ** 20,
  g: 1e9,
  gb: 1e9,
  gib: 2 ** 30,
  t: 1e12,
  tb: 1e12,
  tib: 2 ** 40,
};

/** "64MiB", "1.5 GB" or "4096" as a whole number of bytes. Throws a usage error naming `what`. */
export function parseBytes(text: string, what: string): number {
  const match = /^\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*$/i.exec(text);
  const unit = match ? UNIT_BYTES[match[2]!.toLowerCase()] : undefined;
  const bytes = unit === undefined ? Number.NaN : Math.round(Number(match![1]) * unit);
  if (!Number.isSafeInteger(bytes)) {
    throw new RunError({
      op: "read setting",
      subject: what,
      message: `expected a size such as 200GiB, 64MiB or 1.5TB, found "${text}"`,
      hint: "units: B, kB, KiB, MB, MiB, GB, GiB, TB, TiB",
      exit: EXIT.usage,
    });
  }
  return bytes;
}

/** 67108864 as "64.0 MiB"; three significant digits or so, binary units. */
export function formatBytes(bytes: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${bytes} B` : `${value.toFixed(value < 10 ? 2 : 1)} ${units[unit]}`;
}

/** The smallest multiple of `step` that is >= `n`. */
export function roundUp(n: number, step: number): number {
  return Math.ceil(n / step) * step;
}
