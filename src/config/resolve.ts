import { EXIT, RunError } from "../base/errors.ts";
import { didYouMean, nearestName } from "./nearest.ts";
import {
  environmentName,
  SETTING_KEYS,
  SETTINGS,
  type SettingKey,
  type SettingValues,
  type Verb,
} from "./settings.ts";

/** Where a value came from, weakest first. */
export type Source = "default" | "run.yaml" | "environment" | "flag";

/** What was written for one setting, before it is parsed; several texts where it was repeated. */
export type SettingText = string | string[];

/** Setting names (`spool-bytes`) to what was written for them. */
export type SettingTexts = Record<string, SettingText>;

export interface RunYaml {
  /** How messages name the file: "run.yaml". */
  file: string;
  /** The directory that its relative paths count from. */
  directory: string;
  address: string | null;
  texts: SettingTexts;
  /** The line of each key, for messages. */
  lines: Record<string, number>;
}

export interface Resolved {
  values: SettingValues;
  sources: Record<SettingKey, Source>;
  /** What was written for each setting that is not at its default, paths made absolute: enough to resolve again. */
  written: SettingTexts;
}

export interface ResolveInput {
  verb: Verb;
  flags: SettingTexts;
  env: Record<string, string | undefined>;
  file: RunYaml | null;
  /** What relative paths of flags and environment count from. */
  directory: string;
}

/**
 * Each setting's value and where it came from: run.yaml < environment < flags. Settings of other verbs keep their
 * defaults. Throws `usage` for a flag that does not parse, `configuration` for the file and the environment.
 */
export function resolveSettings(input: ResolveInput): Resolved {
  refuseMistypedVariables(input.env);
  const values: Record<string, unknown> = {};
  const sources = {} as Record<SettingKey, Source>;
  const written: SettingTexts = {};
  for (const key of SETTING_KEYS) {
    const setting = SETTINGS[key];
    const found = setting.verbs.includes(input.verb) ? findText(setting.name, input) : null;
    sources[key] = found?.source ?? "default";
    values[key] = setting.default;
    if (!found) continue;
    const parsed = parseText(key, found);
    values[key] = parsed;
    written[setting.name] = absolute(
      key,
      { ...found, text: setting.many ? splitMany(found) : found.text },
      parsed,
    );
  }
  return { values: values as SettingValues, sources, written };
}

/** The setting's value, or a usage error that says how to give it. */
export function requireSetting<K extends SettingKey>(
  resolved: Resolved,
  key: K,
): NonNullable<SettingValues[K]> {
  const value = resolved.values[key];
  if (value !== null && value !== undefined) return value;
  const { name, kind, doc } = SETTINGS[key];
  throw new RunError({
    op: "read settings",
    subject: `--${name}`,
    message: `--${name} is needed: ${doc}`,
    safe: "nothing was started",
    hint: `add --${name} ${kind.placeholder}, or "${name}:" to run.yaml`,
    exit: EXIT.usage,
  });
}

interface Found {
  text: SettingText;
  source: Exclude<Source, "default">;
  what: string;
  directory: string;
}

function findText(name: string, input: ResolveInput): Found | null {
  const flag = input.flags[name];
  if (flag !== undefined) {
    return { text: flag, source: "flag", what: `--${name}`, directory: input.directory };
  }
  const variable = environmentName(name);
  const value = input.env[variable];
  if (value !== undefined && value !== "") {
    return { text: value, source: "environment", what: variable, directory: input.directory };
  }
  const entry = input.file?.texts[name];
  if (input.file && entry !== undefined) {
    const what = `${input.file.file}:${input.file.lines[name] ?? 1}: ${name}`;
    return { text: entry, source: "run.yaml", what, directory: input.file.directory };
  }
  return null;
}

function parseText(key: SettingKey, found: Found): unknown {
  const { kind, many, name } = SETTINGS[key];
  try {
    if (many) return splitMany(found).map((text) => kind.parse(text, found.what, found.directory));
    if (Array.isArray(found.text) && found.text.length > 1 && found.source === "flag") {
      throw new RunError({
        op: "read setting",
        subject: found.what,
        message: `--${name} was given ${found.text.length} times, with different meanings possible`,
        safe: "nothing was started",
        hint: `give --${name} once`,
        exit: EXIT.usage,
      });
    }
    return kind.parse([found.text].flat().join(","), found.what, found.directory);
  } catch (error) {
    if (!(error instanceof RunError) || found.source === "flag") throw error;
    throw withExit(error, EXIT.configuration);
  }
}

function splitMany(found: Found): string[] {
  return found.source === "environment" ? String(found.text).split(",") : [found.text].flat();
}

/** A path as an absolute one, so that a process with another working directory reads the same. */
function absolute(key: SettingKey, { text }: Found, parsed: unknown): SettingText {
  if (SETTINGS[key].kind.isPath) return parsed as SettingText;
  return SETTINGS[key].many ? [text].flat() : [text].flat().join(",");
}

/** FOREBAY_SPOOL_BYTE would otherwise be ignored without a word; names far from all of ours are somebody else's. */
function refuseMistypedVariables(env: Record<string, string | undefined>): void {
  const known = SETTING_KEYS.map((key) => environmentName(SETTINGS[key].name));
  for (const name of Object.keys(env)) {
    if (!name.startsWith("FOREBAY_") || known.includes(name) || OTHER_VARIABLES.has(name)) continue;
    const suffix = name.slice("FOREBAY_".length);
    const near = nearestName(
      suffix,
      known.map((other) => other.slice("FOREBAY_".length)),
    );
    if (near === null) continue;
    throw new RunError({
      op: "read environment",
      subject: name,
      message: `${name} is no setting`,
      safe: "nothing was started",
      hint: didYouMean(name, known),
      exit: EXIT.configuration,
    });
  }
}

/** Ours, but no settings: what `--on-exit` commands get, and the file of settings. */
const OTHER_VARIABLES = new Set(["FOREBAY_EXIT_CODE", "FOREBAY_CONFIG"]);

function withExit(error: RunError, exit: typeof EXIT.configuration): RunError {
  const { op, subject, message, safe, hint, remedy, cause } = error;
  return new RunError({ op, subject, message, safe, hint, remedy, exit, cause });
}
