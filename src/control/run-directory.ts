import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { z } from "zod";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { publishReplacing } from "../base/publish.ts";
import { isProcessAlive, ProcessIdentity } from "./process-identity.ts";

/** The files of a run directory. All of them are caches: removing the directory loses no data of the run. */
export const FILES = {
  status: "status.json",
  history: "history.json",
  events: "events.log",
  supervisor: "supervisor.json",
  keeper: "keeper.json",
  launch: "launch.json",
  keeperLog: "keeper.log",
  spool: "spool",
} as const;

/** How the living supervisor is reached; 0600, because it holds the token. */
export const SupervisorRecord = z.object({
  process: ProcessIdentity,
  startedAt: z.string(),
  address: z.string(),
  part: z.object({ index: z.number(), count: z.number() }),
  /** Name of the abstract socket, without its leading NUL. */
  socket: z.string(),
  token: z.string(),
  pageUrl: z.string().nullable(),
  spool: z.string(),
});
export type SupervisorRecord = z.infer<typeof SupervisorRecord>;

/** What the keeper last did; how `--detach` and `status` learn that it gave up. */
export const KeeperRecord = z.object({
  process: ProcessIdentity,
  startedAt: z.string(),
  state: z.enum(["running", "waiting", "ended"]),
  restarts: z.number().int().nonnegative(),
  /** How the supervisor last ended. */
  lastExit: z
    .object({ code: z.number().nullable(), signal: z.string().nullable(), at: z.string() })
    .nullable(),
  /** What was decided then, in words. */
  decision: z.string().nullable(),
});
export type KeeperRecord = z.infer<typeof KeeperRecord>;

/** What a supervisor is started with, written down so that it can be started again: after a crash, by `restart`. */
export const LaunchRecord = z.object({
  /** Rises with each `restart`: a keeper whose supervisor ended starts anew when it sees a higher one. */
  generation: z.number().int().positive(),
  verb: z.enum(["run", "resume"]),
  address: z.string(),
  directory: z.string().describe("working directory"),
  /** Setting names to what was written, by source, so that `--print-settings` stays true. */
  settings: z.record(
    z.string(),
    z.object({
      text: z.union([z.string(), z.array(z.string())]),
      source: z.enum(["run.yaml", "environment", "flag"]),
    }),
  ),
  onExit: z.string().nullable(),
});
export type LaunchRecord = z.infer<typeof LaunchRecord>;

/** `<state home>/forebay/<name>-<8 hex of address and part>`: any command finds it from the address alone. */
export function runDirectoryPath(options: {
  /** XDG_STATE_HOME, or ~/.local/state. */
  stateHome: string;
  /** In its one canonical form. */
  address: string;
  part: { index: number; count: number };
}): string {
  const { address, part } = options;
  const name = (address.split("/").filter(Boolean).at(-1) ?? "run").replace(/^file:/, "");
  const hash = createHash("sha256").update(`${address}\n${part.index}/${part.count}`).digest("hex");
  const plain = name.replaceAll(/[^A-Za-z0-9._-]/g, "_").slice(0, 60);
  return join(options.stateHome, "forebay", `${plain}-${hash.slice(0, 8)}`);
}

/** Makes the directory (0700). Throws (disk) where that fails, or where it is somebody else's. */
export function makeRunDirectory(path: string): void {
  try {
    mkdirSync(path, { recursive: true, mode: 0o700 });
    const owner = statSync(path).uid;
    if (owner !== process.getuid?.()) throw new Error(`it belongs to user ${owner}`);
  } catch (cause) {
    throw new RunError({
      op: "make run directory",
      subject: path,
      message: `expected a directory of our own, found: ${errnoOf(cause) ?? (cause as Error).message}`,
      safe: "nothing was started",
      hint: "name another with --run-dir, or set XDG_STATE_HOME",
      exit: EXIT.disk,
      cause,
    });
  }
}

export function writeRecord(path: string, record: SupervisorRecord | KeeperRecord | LaunchRecord): void {
  publishReplacing(path, Buffer.from(`${JSON.stringify(record, null, 2)}\n`));
}

/** null where there is none, or it is cut or of another form: these files are caches. */
export function readRecord<T>(path: string, schema: z.ZodType<T>): T | null {
  try {
    return schema.parse(JSON.parse(readFileSync(path, "utf8")));
  } catch {
    return null;
  }
}

/** What stands in a run directory. `alive` means the very process that wrote the record, not one with its pid. */
export interface RunDirectory {
  path: string;
  exists: boolean;
  supervisor: { record: SupervisorRecord; alive: boolean } | null;
  keeper: { record: KeeperRecord; alive: boolean } | null;
  launch: LaunchRecord | null;
}

export function lookAtRunDirectory(path: string): RunDirectory {
  const supervisor = readRecord(join(path, FILES.supervisor), SupervisorRecord);
  const keeper = readRecord(join(path, FILES.keeper), KeeperRecord);
  return {
    path,
    exists: existsSync(path),
    supervisor: supervisor && { record: supervisor, alive: isProcessAlive(supervisor.process) },
    keeper: keeper && { record: keeper, alive: isProcessAlive(keeper.process) },
    launch: readRecord(join(path, FILES.launch), LaunchRecord),
  };
}
