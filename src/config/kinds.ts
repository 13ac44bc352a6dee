import { existsSync } from "node:fs";
import { isAbsolute, resolve } from "node:path";
import { parseBytes } from "../base/bytes.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { UPLOADS_MAX } from "../base/limits.ts";

/**
 * What a setting's text means. `parse` gets the text (or the texts, where the setting may be repeated), what to
 * call it in a message ("--spool-bytes"), and the directory that relative paths count from.
 */
export interface Kind<T> {
  /** How --help shows the value: "<size>"; empty for a switch. */
  placeholder: string;
  parse(text: string, what: string, directory: string): T;
  /** A value as a person would write it, so that parse(show(v)) is v. Default: String(v). */
  show?(value: T): string;
  /** True where the flag takes no value. */
  isSwitch?: boolean;
  /** Paths are made absolute when a setting is written down for a process with another working directory. */
  isPath?: boolean;
}

export const size: Kind<number> = {
  placeholder: "<size>",
  parse: (text, what) => parseBytes(text, what),
  show(bytes) {
    const unit = ["TiB", "GiB", "MiB", "KiB"].find((_, i) => bytes > 0 && bytes % 2 ** (40 - 10 * i) === 0);
    return unit ? `${bytes / UNIT_SIZE[unit]!}${unit}` : String(bytes);
  },
};

const UNIT_SIZE: Record<string, number> = { TiB: 2 ** 40, GiB: 2 ** 30, MiB: 2 ** 20, KiB: 2 ** 10 };

const UNIT_MS: Record<string, number> = { ms: 1, s: 1e3, m: 60e3, h: 3_600e3, d: 86_400e3 };

/** "30m", "1h30m", "25s" in ms. A bare number is refused: seconds and minutes are too easily confused. */
export const duration: Kind<number> = {
  placeholder: "<duration>",
  parse(text, what) {
    const compact = text.replaceAll(/\s/g, "");
    if (!/^(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+$/.test(compact)) {
      throw unreadable(what, "a duration such as 25s, 30m or 1h30m", text, "units: ms, s, m, h, d");
    }
    let ms = 0;
    for (const [, number, unit] of compact.matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)) {
      ms += Number(number) * UNIT_MS[unit!]!;
    }
    return ms;
  },
  show(ms) {
    const unit = ["d", "h", "m", "s"].find((name) => ms > 0 && ms % UNIT_MS[name]! === 0) ?? "ms";
    return `${ms / UNIT_MS[unit]!}${unit}`;
  },
};

/** A whole number in [min, max]. */
export function whole(min: number, max = Number.MAX_SAFE_INTEGER): Kind<number> {
  return {
    placeholder: "<n>",
    parse(text, what) {
      const range = max === Number.MAX_SAFE_INTEGER ? `of at least ${min}` : `from ${min} to ${max}`;
      return readWhole(text, what, min, max, `a whole number ${range}`);
    },
  };
}

/** A number >= 0, fractions allowed. */
export const amount: Kind<number> = {
  placeholder: "<number>",
  parse(text, what) {
    if (!/^\d+(?:\.\d+)?$/.test(text.trim())) throw unreadable(what, "a number such as 12.50", text);
    return Number(text);
  },
};

/** "0.1%" or "0.001" as a fraction in [0, 1]. */
export const share: Kind<number> = {
  placeholder: "<share>",
  parse(text, what) {
    const match = /^(\d+(?:\.\d+)?)\s*(%?)$/.exec(text.trim());
    const value = match ? Number(match[1]) / (match[2] ? 100 : 1) : Number.NaN;
    if (!(value >= 0 && value <= 1)) throw unreadable(what, "a share such as 0.1% or 0.001", text);
    return value;
  },
  show: (value) => `${Number((value * 100).toPrecision(12))}%`,
};

export const text: Kind<string> = {
  placeholder: "<text>",
  parse(value, what) {
    if (value === "") throw unreadable(what, "some text", value);
    return value;
  },
};

export const path: Kind<string> = {
  placeholder: "<path>",
  isPath: true,
  parse(value, what, directory) {
    if (value === "" || value.includes("\0")) throw unreadable(what, "a path", value);
    return isAbsolute(value) ? value : resolve(directory, value);
  },
};

/** A model directory; "Org/Name" stays as it is where there is none of that name: it may be the hub's. */
export const model: Kind<string> = {
  ...path,
  parse(value, what, directory) {
    const found = path.parse(value, what, directory);
    return /^[^./~][^/]*\/[^/]+$/.test(value) && !existsSync(found) ? value : found;
  },
};

/** A program: a bare name is looked up in PATH, anything with a slash is a path. */
export const program: Kind<string> = {
  placeholder: "<program>",
  isPath: true,
  parse(value, what, directory) {
    if (value === "") throw unreadable(what, "a program's name or path", value);
    return value.includes("/") ? path.parse(value, what, directory) : value;
  },
};

/** An http or https URL. Only the operator names one; what it points at is checked when it is used. */
export const url: Kind<string> = {
  placeholder: "<url>",
  parse(value, what) {
    const parsed = URL.canParse(value) ? new URL(value) : null;
    if (!parsed || !/^https?:$/.test(parsed.protocol)) {
      throw unreadable(what, "a URL that begins with http:// or https://", value);
    }
    // It is shown in settings, status and the resume command.
    if (parsed.username !== "" || parsed.password !== "") {
      throw unreadable(what, "a URL without a user name and password", `one for ${parsed.host} with them`);
    }
    return value;
  },
};

export function choice<const T extends string>(...options: T[]): Kind<T> {
  return {
    placeholder: `<${options.join("|")}>`,
    parse(value, what) {
      const found = options.find((option) => option === value);
      if (found === undefined) throw unreadable(what, `one of ${options.join(", ")}`, value);
      return found;
    },
  };
}

export const yesNo: Kind<boolean> = {
  placeholder: "",
  isSwitch: true,
  parse(value, what) {
    if (/^(?:true|yes|on|1)$/i.test(value)) return true;
    if (/^(?:false|no|off|0)$/i.test(value)) return false;
    throw unreadable(what, "true or false", value);
  },
};

/** "1,3,5": layer numbers, ascending and each once, because engines return layers in ascending order. */
export const layers: Kind<number[]> = {
  placeholder: "<i,j,k>",
  parse(value, what) {
    const expected = "layer numbers such as 1,3,5, ascending and each once";
    const numbers = value
      .split(",")
      .map((part) => readWhole(part, what, 0, Number.MAX_SAFE_INTEGER, expected, value));
    const ordered = [...new Set(numbers)].sort((a, b) => a - b);
    if (ordered.join() !== numbers.join()) {
      throw unreadable(what, expected, value, `in order: ${what} ${ordered.join(",")}`);
    }
    return numbers;
  },
  show: (numbers) => numbers.join(","),
};

/** "0,1,2,3": names separated by commas, none empty and none twice. */
export const names: Kind<string[]> = {
  placeholder: "<a,b,c>",
  parse(value, what) {
    const list = value.split(",").map((part) => part.trim());
    if (list.includes("") || new Set(list).size !== list.length) {
      throw unreadable(what, "names separated by commas, each once, such as 0,1,2,3", value);
    }
    return list;
  },
};

/** "A:B", either side may be left out: rows [start, end). */
export const rowRange: Kind<{ start: number; end: number | null }> = {
  placeholder: "<A:B>",
  parse(value, what) {
    const match = /^(\d*):(\d*)$/.exec(value.trim());
    const start = match?.[1] ? Number(match[1]) : 0;
    const end = match?.[2] ? Number(match[2]) : null;
    if (!match || value.trim() === ":" || (end !== null && end <= start)) {
      throw unreadable(what, "a range of rows such as 0:1000 (the end is not included)", value);
    }
    return { start, end };
  },
  show: ({ start, end }) => `${start}:${end ?? ""}`,
};

/** "2/8": the second of eight parts. */
export const partOf: Kind<{ index: number; count: number }> = {
  placeholder: "<i/N>",
  parse(value, what) {
    const match = /^(\d+)\/(\d+)$/.exec(value.trim());
    const index = Number(match?.[1]);
    const count = Number(match?.[2]);
    if (!match || index < 1 || index > count || count > 10_000) {
      throw unreadable(what, "a part such as 1/4, counted from 1", value);
    }
    return { index, count };
  },
  show: ({ index, count }) => `${index}/${count}`,
};

/** "auto", or a whole number in [1, UPLOADS_MAX]. */
export const autoOrUploads: Kind<"auto" | number> = {
  placeholder: "<auto|n>",
  parse(value, what) {
    if (value === "auto") return "auto";
    return readWhole(value, what, 1, UPLOADS_MAX, `auto, or a whole number from 1 to ${UPLOADS_MAX}`);
  },
};

/** "K=V" as a pair. */
export const assignment: Kind<[name: string, value: string]> = {
  placeholder: "<K=V>",
  parse(value, what) {
    const at = value.indexOf("=");
    if (at < 1 || !/^[A-Za-z_][A-Za-z0-9_]*$/.test(value.slice(0, at))) {
      throw unreadable(what, "an assignment such as OMP_NUM_THREADS=4", value);
    }
    return [value.slice(0, at), value.slice(at + 1)];
  },
  show: (pair) => pair.join("="),
};

function readWhole(
  value: string,
  what: string,
  min: number,
  max: number,
  expected: string,
  shown = value,
): number {
  const number = /^\d+$/.test(value.trim()) ? Number(value) : Number.NaN;
  if (!Number.isSafeInteger(number) || number < min || number > max) throw unreadable(what, expected, shown);
  return number;
}

function unreadable(what: string, expected: string, found: string, hint?: string): RunError {
  return new RunError({
    op: "read setting",
    subject: what,
    message: `expected ${expected}, found "${found}"`,
    safe: "nothing was started",
    hint: hint ?? `give ${what} ${expected}; --help shows them all`,
    exit: EXIT.usage,
  });
}
