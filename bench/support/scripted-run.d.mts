import type { History } from "../../src/monitor/history.ts";
import type { RunEvent, RunState, StatusDocument, StatusSource } from "../../src/run/status.ts";

export interface ScriptedRunOptions {
  /** Unix milliseconds. */
  nowMs: () => number;
  state?: RunState;
  engines?: number;
  /** Hours since the run began, at the first snapshot. */
  elapsedHours?: number;
  /** Last word on every document. */
  edit?: (document: StatusDocument) => StatusDocument;
  events?: RunEvent[];
}

export interface ScriptedRun extends StatusSource {
  /** As if the monitor had watched for `hours` already. */
  fillHistory(history: History, hours: number): void;
}

export function scriptedRun(options: ScriptedRunOptions): ScriptedRun;
