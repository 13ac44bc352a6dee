import { formatBytes } from "../../src/base/bytes.ts";

/** What stands for an unknown figure: never 0. */
export const UNKNOWN = "–";

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });

/** 12,345 */
export function count(value: number | null): string {
  return value === null ? UNKNOWN : whole.format(value);
}

/** 306.1 M; four significant digits above a million. */
export function short(value: number | null): string {
  if (value === null) return UNKNOWN;
  if (value < 1e6) return whole.format(value);
  const [unit, name] = value < 1e9 ? [1e6, "M"] : value < 1e12 ? [1e9, "G"] : [1e12, "T"];
  const scaled = value / unit;
  return `${scaled.toFixed(scaled < 100 ? 2 : 1)} ${name}`;
}

/** 3.7, 41, 15,400: as many digits as a rate deserves. */
export function rate(value: number | null): string {
  if (value === null) return UNKNOWN;
  return value < 10 ? String(Number(value.toFixed(1))) : whole.format(value);
}

/** Of a share 0-1. Never rounds up to 100 % what is not all. */
export function percent(share: number | null, digits = 0): string {
  if (share === null || !Number.isFinite(share)) return UNKNOWN;
  const step = 10 ** digits;
  const value = share >= 1 ? 100 : Math.min(100 - 1 / step, Math.round(share * 100 * step) / step);
  return `${value.toFixed(digits)} %`;
}

export function bytes(value: number | null): string {
  return value === null ? UNKNOWN : formatBytes(value);
}

/** "2 d 4 h", "3 h 05 min", "4 min 10 s", "12 s": two units at most. */
export function duration(seconds: number | null): string {
  if (seconds === null || !Number.isFinite(seconds)) return UNKNOWN;
  const s = Math.max(0, Math.round(seconds));
  const pad = (value: number) => String(value).padStart(2, "0");
  if (s < 60) return `${s} s`;
  if (s < 3_600) return `${Math.floor(s / 60)} min ${pad(s % 60)} s`;
  // Minutes are rounded, or 59 min 59 s would read as an hour less a minute.
  const minutes = Math.round(s / 60);
  if (minutes < 24 * 60) return `${Math.floor(minutes / 60)} h ${pad(minutes % 60)} min`;
  const hours = Math.round(s / 3_600);
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** "14:32", with the day where it is another one. The reader's own zone. */
export function clock(iso: string | null, nowMs: number): string {
  if (iso === null) return UNKNOWN;
  const at = new Date(iso);
  const time = at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  if (at.toDateString() === new Date(nowMs).toDateString()) return time;
  const soon = Math.abs(at.getTime() - nowMs) < 6 * 86_400_000;
  const day = at.toLocaleDateString(
    "en-GB",
    soon ? { weekday: "short" } : { day: "numeric", month: "short" },
  );
  return `${day} ${time}`;
}

export function clockSeconds(iso: string): string {
  return new Date(iso).toLocaleTimeString("en-GB");
}

export function money(value: number | null, currency: string): string {
  if (value === null) return UNKNOWN;
  const digits = value < 1_000 ? 2 : 0;
  try {
    return value.toLocaleString("en-US", {
      style: "currency",
      currency,
      minimumFractionDigits: digits,
      maximumFractionDigits: digits,
    });
  } catch {
    return `${value.toFixed(digits)} ${currency}`;
  }
}

/** MB/s as uplinks are sold: 10^6. */
export function megabytesPerS(bytesPerS: number | null): string {
  return bytesPerS === null ? UNKNOWN : `${rate(bytesPerS / 1e6)} MB/s`;
}

/** What somebody said as a sentence: "loading the model" as "Loading the model." */
export function sentence(text: string): string {
  const end = /[.!?:;…]$/.test(text) ? "" : ".";
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${end}`;
}

/** "done_with_skips" as "Done with skips". */
export function title(name: string): string {
  return name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
}
