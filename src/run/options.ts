import type { ExitCode } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { EngineCommand } from "../engine/child.ts";
import type { EngineLimits } from "../engine/watchdog.ts";
import type { Uploads } from "../spool/limiter.ts";
import type { StoreSpec } from "../store/store.ts";
import type { Part } from "./lease.ts";
import type { RunRequest } from "./prepare.ts";
import type { EngineFacts } from "./record.ts";
import type { StatusDocument } from "./status.ts";
import type { StatusBoard } from "./status-board.ts";

/** The engines of one session. */
export interface EngineSetup {
  facts: EngineFacts;
  /** One an engine, in the order of their numbers. */
  commands: EngineCommand[];
  /** Passed to every engine's `load`. */
  options: Record<string, string | number | boolean | null>;
  /** The command that goes on with this run elsewhere, by this engine. */
  resumeCommand: string;
}

/** Everything that decides how a run is done; what it is, is in `request`. */
export interface ExtractOptions {
  spec: StoreSpec;
  address: string;
  request: RunRequest;
  part: Part;
  takeOver: boolean;
  /** `begun`: how the run that stands in the store was begun. Rejects where these engines cannot be started here. */
  engines: (begun: Partial<EngineFacts>) => Promise<EngineSetup>;
  /** How long an engine may be silent before it is taken for hung. */
  engineLimits: Partial<EngineLimits>;
  /** Share of the rows that may be skipped at run time. */
  maxSkips: number;
  /** Run the gate before the first batch. */
  gate: boolean;
  spool: { directory: string; budgetBytes: number; floorBytes: number };
  uploads: Uploads;
  inflightBytes: number;
  attachments: string[];
  /** Give up (exit 75) after being blocked so long; null: never. */
  maxBlockedMs: number | null;
  /** How long a graceful stop flushes ready/. */
  stopDeadlineMs: number;
  runDirectory: string;
  appVersion: string;
  price: { currency: string; perHour: number } | null;
  /** The same while the engine may not be known. */
  resumeCommand: string;
  /** Settings as shown in status: redacted texts. */
  settings: StatusDocument["run"]["settings"];
}

export interface ExtractTools {
  log: Log;
  /** Hears every event of the log besides its other sinks; hand it to makeLog. */
  board: StatusBoard;
  host: string;
  pidAlive: (pid: number) => boolean;
  random: () => number;
  /** Monotonic. */
  nowMs: () => number;
  wallMs: () => number;
  /** Aborting it stops gracefully: nothing is lost, exit 143 or 130 as `stopExit` says. */
  stop: AbortSignal;
  stopExit: () => ExitCode;
  /** Called once when settings and inputs were accepted and the spool is ours, before anything is computed. */
  onAccepted?: () => void;
  /** Called once when there is something to control: `set` and `stop` of the living run. */
  onLive?: (controls: LiveControls) => void;
  /** Every second, and once at the end with the final document. */
  onTick?: (document: StatusDocument) => void;
}

export interface LiveControls {
  setUploads: (limits: { uploads?: Uploads; inflightBytes?: number }) => void;
}
