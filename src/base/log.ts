/** One thing that happened: a dotted name and plain fields. Never raw errors, headers or settings. */
export interface LogEvent {
  at: string;
  level: "debug" | "info" | "warn" | "error";
  event: string;
  [field: string]: string | number | boolean | null;
}

export type LogFields = Record<string, string | number | boolean | null>;

/** What parts are handed to speak through; they never make their own. */
export interface Log {
  debug(event: string, fields?: LogFields): void;
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  error(event: string, fields?: LogFields): void;
}

/** A Log that hands every event to each sink (a file, the terminal, the monitor's tail). */
export function makeLog(sinks: ((event: LogEvent) => void)[], nowMs: () => number): Log {
  const at =
    (level: LogEvent["level"]) =>
    (event: string, fields: LogFields = {}) => {
      const entry: LogEvent = { ...cleanFields(fields), at: new Date(nowMs()).toISOString(), level, event };
      for (const sink of sinks) sink(entry);
    };
  return { debug: at("debug"), info: at("info"), warn: at("warn"), error: at("error") };
}

/** A Log that says nothing, for tests and for parts used as a library. */
export const silentLog: Log = makeLog([], () => 0);

/**
 * Text from outside (engine stderr, row ids, server answers) made harmless for terminals, logs and pages:
 * ANSI sequences, control and bidirectional characters removed, cut to `charsMax`.
 */
export function plainText(text: string, charsMax = 2_000): string {
  const plain = text
    // biome-ignore lint/suspicious/noControlCharactersInRegex: removing them is the point
    .replace(/\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g, "")
    // biome-ignore lint/suspicious/noControlCharactersInRegex: removing them is the point
    .replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "");
  return plain.length > charsMax ? `${plain.slice(0, charsMax)}…` : plain;
}

function cleanFields(fields: LogFields): LogFields {
  return Object.fromEntries(
    Object.entries(fields).map(([name, value]) => [
      name,
      typeof value === "string" ? plainText(value) : value,
    ]),
  );
}
