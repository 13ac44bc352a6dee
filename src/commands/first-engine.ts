import { mkdirSync, rmSync } from "node:fs";
import { join } from "node:path";
import { silentLog } from "../base/log.ts";
import type { SettingValues } from "../config/settings.ts";
import { Engine } from "../engine/engine.ts";
import type { EngineSetup } from "../run/options.ts";
import { planEngines } from "./engine-commands.ts";
import type { Io } from "./io.ts";
import { stateHome } from "./run-place.ts";
import { needVllmServer } from "./vllm-servers.ts";

/**
 * `use` of one engine, as a run would start its first. It is gone before another needs the room that its model takes;
 * its whole stderr stays in a file, which is named where it fails.
 */
export async function withFirstEngine<T>(
  io: Io,
  values: SettingValues,
  use: (engine: Engine, options: EngineSetup["options"]) => Promise<T>,
): Promise<T> {
  const { commands, options } = planEngines(values, io.env);
  const [command] = commands;
  if (values.engine === "vllm") await needVllmServer(values.vllm.slice(0, 1));
  const stderrFile = freshLog(io.env, values.engine);
  const engine = await Engine.start({
    command: command!,
    label: `${values.engine}-0`,
    log: silentLog,
    stderrFile,
    signal: io.signal,
  });
  try {
    return await use(engine, options);
  } finally {
    await engine.shutdown();
  }
}

/** null where there can be none: an engine is tried without it too. */
function freshLog(env: NodeJS.ProcessEnv, engine: string): string | null {
  const directory = join(stateHome(env), "forebay");
  const path = join(directory, `check-${engine}.log`);
  try {
    mkdirSync(directory, { recursive: true, mode: 0o700 });
    rmSync(path, { force: true });
    return path;
  } catch {
    return null;
  }
}
