import type { Resolved } from "../config/resolve.ts";
import { SETTINGS, settingsOfVerb, showValue } from "../config/settings.ts";

/** What of the settings the status document shows: those that are not at their defaults. */
export function shownSettings(settings: Resolved): Record<string, string> {
  const shown: Record<string, string> = {};
  for (const key of settingsOfVerb("run")) {
    if (settings.sources[key] === "default" || HIDDEN.has(key)) continue;
    shown[SETTINGS[key].name] = showValue(key, settings.values[key]);
  }
  return shown;
}

/** A ping URL is a key to somebody's pager, a command line or an engine's variable may hold anything. */
const HIDDEN: ReadonlySet<string> = new Set(["heartbeatUrl", "onExit", "engineEnv", "runDir"]);
