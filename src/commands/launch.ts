import { EXIT, RunError } from "../base/errors.ts";
import { type Resolved, resolveSettings, type SettingTexts, type Source } from "../config/resolve.ts";
import { SETTING_KEYS, SETTINGS } from "../config/settings.ts";
import type { LaunchRecord } from "../control/run-directory.ts";

type LaunchSettings = LaunchRecord["settings"];

/** What was written for each setting, and where, so that another process can resolve the same. */
export function launchOf(resolved: Resolved, keep: (source: Source) => boolean = () => true): LaunchSettings {
  const settings: LaunchSettings = {};
  for (const key of SETTING_KEYS) {
    const { name } = SETTINGS[key];
    const source = resolved.sources[key];
    const text = resolved.written[name];
    if (source === "default" || text === undefined || !keep(source) || name === "detach") continue;
    settings[name] = { text, source };
  }
  return settings;
}

/** The settings of a launch record, each with the source that it had when it was first written. */
export function settingsOfLaunch(launch: LaunchRecord): Resolved {
  const flags: SettingTexts = {};
  for (const [name, { text }] of Object.entries(launch.settings)) flags[name] = text;
  const resolved = resolveSettings({
    verb: launch.verb,
    flags,
    env: {},
    file: null,
    directory: launch.directory,
  });
  for (const key of SETTING_KEYS) {
    const entry = launch.settings[SETTINGS[key].name];
    if (entry && resolved.sources[key] === "flag") resolved.sources[key] = entry.source;
  }
  return resolved;
}

export function damagedLaunch(directory: string): RunError {
  return new RunError({
    op: "start supervisor",
    subject: `${directory}/launch.json`,
    message: "it is missing or damaged",
    safe: "nothing was started; the run lies in the store as it was",
    hint: "forebay run or forebay resume writes it anew",
    exit: EXIT.configuration,
  });
}
