import type { Resolved } from "../config/resolve.ts";
import { SETTINGS, type SettingKey, settingsOfVerb } from "../config/settings.ts";
import { runDirectoryPath } from "../control/run-directory.ts";
import { ENGINES, type EngineName, foreignKeys } from "./engine-flags.ts";
import { type RunPlace, stateHome } from "./run-place.ts";

/** Headings of settings without which a run may not go on, or not find what is in its spool. */
const NEEDED: ReadonlySet<string> = new Set(["Engine", "Spool", "Store"]);
/** What was found for these stands in the place, whoever said it; an engine's variable may hold anything. */
const LEFT_OUT: ReadonlySet<SettingKey> = new Set(["endpoint", "region", "engineEnv"]);

/**
 * The command that goes on with this run, with what was asked for this time, as far as its engine takes it as a flag.
 * `engine`: null while only the store knows it. On another machine paths may differ.
 */
export function resumeCommand(
  place: RunPlace,
  settings: Resolved,
  { engine, env }: { engine: EngineName | null; env: NodeJS.ProcessEnv },
): string {
  const { spec, address, directory } = place;
  const { model, part } = settings.values;
  const words = ["forebay", "resume", address, "--model", model ?? "DIR"];
  if (part.count > 1) words.push("--part", `${part.index}/${part.count}`);
  const foreign = engine === null ? maybeForeign(settings) : foreignKeys(settings.values, [engine]);
  for (const key of settingsOfVerb("resume")) {
    if (LEFT_OUT.has(key) || foreign.includes(key)) continue;
    if (NEEDED.has(SETTINGS[key].group)) words.push(...flagOf(key, settings));
  }
  if (spec.kind === "s3" && spec.endpoint) words.push("--endpoint", spec.endpoint);
  if (spec.kind === "s3" && spec.region !== "us-east-1") words.push("--region", spec.region);
  // That of a detached run is always written down.
  const usual = runDirectoryPath({ stateHome: stateHome(env), address, part });
  if (directory !== usual) words.push("--run-dir", directory);
  return words.map(quoted).join(" ");
}

/** What some engine would refuse as a flag; one that is given as a flag already has the engine that it is for. */
function maybeForeign({ values, sources }: Resolved): SettingKey[] {
  const foreign = ENGINES.flatMap((engine) => foreignKeys(values, [engine]));
  return foreign.filter((key) => sources[key] !== "flag");
}

/** As it was written; nothing where it is at its default. */
function flagOf(key: SettingKey, { written, sources, values }: Resolved): string[] {
  const { name, kind } = SETTINGS[key];
  const text = written[name];
  if (sources[key] === "default" || text === undefined) return [];
  if (kind.isSwitch) return [values[key] ? `--${name}` : `--no-${name}`];
  return [text].flat().flatMap((one) => (one.startsWith("-") ? [`--${name}=${one}`] : [`--${name}`, one]));
}

function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
