/** What a command may touch of the process it runs in; tests hand over their own. */
export interface Io {
  /** Data. */
  stdout(text: string): void;
  /** Progress and errors. */
  stderr(text: string): void;
  env: NodeJS.ProcessEnv;
  /** What relative paths count from. */
  directory: string;
  stderrIsTty: boolean;
  stdoutIsTty: boolean;
  /** Width of the terminal, or what COLUMNS says. */
  columns(): number;
  /** Aborts at the first SIGINT, SIGTERM or SIGHUP; the reason is a SignalReceived. */
  signal: AbortSignal;
}

/** The signal that asked this process to end. */
export class SignalReceived extends Error {
  readonly signal: "SIGINT" | "SIGTERM" | "SIGHUP";

  constructor(signal: "SIGINT" | "SIGTERM" | "SIGHUP") {
    super(`received ${signal}`);
    this.name = "SignalReceived";
    this.signal = signal;
  }

  /** What a shell would see: 130 for Ctrl-C, 143 for the others (a closed terminal is asked to stop, like SIGTERM). */
  get exitCode(): 130 | 143 {
    return this.signal === "SIGINT" ? 130 : 143;
  }
}

export function printLine(io: Io, line: string): void {
  io.stdout(`${line}\n`);
}

export function printJson(io: Io, value: unknown): void {
  io.stdout(`${JSON.stringify(value)}\n`);
}

/** Progress for a person; says nothing where progress is quiet. */
export function say(io: Io, line: string): void {
  io.stderr(`${line}\n`);
}

/** Columns padded to their widest cell, two spaces between; numbers to the right where `right` names the column. */
export function tableLines(rows: string[][], right: ReadonlySet<number> = new Set()): string[] {
  const widths: number[] = [];
  for (const row of rows) {
    row.forEach((cell, column) => {
      widths[column] = Math.max(widths[column] ?? 0, cell.length);
    });
  }
  return rows.map((row) =>
    row
      .map((cell, column) =>
        right.has(column) ? cell.padStart(widths[column]!) : cell.padEnd(widths[column]!),
      )
      .join("  ")
      .trimEnd(),
  );
}
