import type { LogEvent } from "../base/log.ts";
import type { StatusDocument } from "../run/status.ts";
import type { Io } from "./io.ts";
import { progressBlock, progressLine } from "./progress-lines.ts";

export type ProgressMode = "auto" | "tty" | "plain" | "json" | "quiet";

/** Shows a run on stderr while it goes on. */
export interface ProgressView {
  /** The present document; called once a second. */
  update(status: StatusDocument): void;
  event(event: LogEvent): void;
  /** The last word; afterwards the terminal is free for other text. */
  finish(): void;
}

const PLAIN_EVERY_MS = 30_000;

/** `auto` is a block in a terminal, and lines in a pipe or under CI. */
export function chooseMode(mode: ProgressMode, io: Io): Exclude<ProgressMode, "auto"> {
  if (mode !== "auto") return mode;
  return io.stderrIsTty && !isSet(io.env.CI) && io.env.TERM !== "dumb" ? "tty" : "plain";
}

export function makeProgress(mode: ProgressMode, io: Io, nowMs: () => number): ProgressView {
  switch (chooseMode(mode, io)) {
    case "tty":
      return blockView(io);
    case "plain":
      return lineView(io, nowMs);
    case "json":
      return jsonView(io);
    case "quiet":
      return { update() {}, event() {}, finish() {} };
  }
}

/** Redraws one block in place; warnings scroll by above it. */
function blockView(io: Io): ProgressView {
  const colour = !isSet(io.env.NO_COLOR);
  let drawn: string[] = [];
  const erase = () => (drawn.length === 0 ? "" : `\u001b[${drawn.length}F\u001b[J`);
  const draw = (lines: string[], above = "") => {
    io.stderr(`${erase()}${above}${lines.map((line) => `${line}\n`).join("")}`);
    drawn = lines;
  };
  return {
    update: (status) => draw(progressBlock(status, { columns: io.columns(), colour })),
    event(event) {
      if (event.level === "warn" || event.level === "error") draw(drawn, `${eventLine(event)}\n`);
    },
    finish() {
      drawn = [];
    },
  };
}

/** A line each 30 s and at each change of state or of what a start is at: what a log file or CI wants. */
function lineView(io: Io, nowMs: () => number): ProgressView {
  let lastMs = Number.NEGATIVE_INFINITY;
  let lastState = "";
  let last: StatusDocument | null = null;
  let page: string | null = null;
  let shown = "";
  const show = (status: StatusDocument) => {
    shown = progressLine(status);
    io.stderr(`${status.generated_at.slice(11, 19)} ${shown}\n`);
  };
  return {
    update(status) {
      last = status;
      const { run } = status;
      if (run.page_url !== page && run.page_url !== null) {
        page = run.page_url;
        io.stderr(`${status.generated_at.slice(11, 19)} page ${page}\n`);
      }
      // Not the reason: it counts seconds.
      const state = `${run.state} ${run.phase}`;
      if (state === lastState && nowMs() - lastMs < PLAIN_EVERY_MS) return;
      lastState = state;
      lastMs = nowMs();
      show(status);
    },
    event(event) {
      if (event.level === "warn" || event.level === "error") io.stderr(`${eventLine(event)}\n`);
    },
    finish() {
      if (last && progressLine(last) !== shown) show(last);
      last = null;
    },
  };
}

/** An event a line, and a `progress` event at each change of state or phase and each 30 s of documents. */
function jsonView(io: Io): ProgressView {
  let updates = 0;
  let lastState = "";
  return {
    update(status) {
      const { state, phase } = status.run;
      const due = updates % (PLAIN_EVERY_MS / 1000) === 0 || `${state} ${phase}` !== lastState;
      updates += 1;
      lastState = `${state} ${phase}`;
      if (!due) return;
      const { run, extraction } = status;
      const { eta, tokens, total, total_processed, skipped, batches } = extraction;
      const { page_url } = run;
      const shown = { state: run.state, phase: run.phase, reason: run.reason, action: run.action, page_url };
      io.stderr(
        `${JSON.stringify({ event: "progress", at: status.generated_at, ...shown, total_processed, total, skipped, tokens, batches, eta })}\n`,
      );
    },
    event: (event) => io.stderr(`${JSON.stringify(event)}\n`),
    finish() {},
  };
}

/** "12:00:01 warn engine.restart shard=0 reason=oom" */
export function eventLine(event: LogEvent): string {
  const { at, level, event: name, ...fields } = event;
  const shown = Object.entries(fields).map(([key, value]) => `${key}=${quoted(value)}`);
  return [at.slice(11, 19), level, name, ...shown].join(" ");
}

function quoted(value: string | number | boolean | null): string {
  return typeof value === "string" && /[\s"=]/.test(value) ? JSON.stringify(value) : String(value);
}

/** NO_COLOR and CI count when they are there and not empty. Source: no-color.org. */
function isSet(value: string | undefined): boolean {
  return value !== undefined && value !== "" && value !== "false";
}
