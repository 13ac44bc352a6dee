import { readFileSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";
import { isMap, isScalar, isSeq, LineCounter, parseDocument } from "yaml";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { nearestName } from "./nearest.ts";
import type { RunYaml, SettingText, SettingTexts } from "./resolve.ts";
import { SETTING_KEYS, SETTINGS, settingsOfVerb, showValue } from "./settings.ts";

/** A file of settings is a page; more is some other file. */
const FILE_BYTES_MAX = 1_000_000;
const SECRET = /secret|token$|password|passwd|access_?key|credential|private_?key/i;

/** Reads a file of settings. Throws (configuration) with the line for anything that is not exactly that. */
export function readRunYaml(path: string): RunYaml {
  let text: string;
  try {
    text = readFileSync(path, "utf8");
  } catch (cause) {
    throw new RunError({
      op: "read settings",
      subject: path,
      message: `cannot read the file (${errnoOf(cause) ?? "unreadable"})`,
      safe: "nothing was started",
      hint: "forebay init writes one",
      exit: EXIT.configuration,
      cause,
    });
  }
  return parseRunYaml(text, basename(path), dirname(resolve(path)));
}

/** As readRunYaml, on text; `directory` is what relative paths in it count from. */
export function parseRunYaml(text: string, file: string, directory: string): RunYaml {
  const refuse = (line: number, message: string, hint?: string): never => {
    throw new RunError({
      op: "read settings",
      subject: `${file}:${line}`,
      message,
      safe: "nothing was started",
      hint,
      exit: EXIT.configuration,
    });
  };
  if (text.length > FILE_BYTES_MAX) refuse(1, `expected a file of settings, found ${text.length} characters`);
  const lines = new LineCounter();
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false, uniqueKeys: true });
  const problem = document.errors[0] ?? document.warnings[0];
  if (problem) {
    const { line } = lines.linePos(problem.pos[0]);
    refuse(line, `not valid YAML: ${problem.message}`, "mend that line; forebay init writes a whole file");
  }
  const found: RunYaml = { file, directory, address: null, texts: {}, lines: {} };
  if (document.contents === null) return found;
  const root = document.contents;
  if (!isMap(root)) return refuse(1, 'expected settings such as "taps: 1,3,5"');
  for (const { key, value } of root.items) {
    const offset = isScalar(key) ? (key.range?.[0] ?? 0) : 0;
    const line = lines.linePos(offset).line;
    const name = isScalar(key) ? String(key.value) : refuse(line, "a setting's name must be plain text");
    if (SECRET.test(name)) {
      refuse(
        line,
        `"${name}" looks like a secret, and settings hold none`,
        "credentials come from the AWS SDK's own chain: environment, profile or instance role",
      );
    }
    const written = textOf(value);
    if (written === undefined) refuse(line, `"${name}" must be one value or a list of values`);
    if (written === null) continue;
    if (name === "address") found.address = [written as SettingText].flat().join(",");
    else if (!NAMES.includes(name)) refuse(line, `unknown setting "${name}"`, suggestion(name));
    else found.texts[name] = written as SettingText;
    found.lines[name] = line;
  }
  return found;
}

/** A commented run.yaml: every setting of `run`, those in `texts` set, the others as comments. */
export function writeRunYaml(address: string | null, texts: SettingTexts): string {
  const lines = [
    "# Settings of one run: forebay run --config run.yaml",
    "# The environment (FOREBAY_SPOOL_BYTES=...) overrides this file, flags (--spool-bytes ...) override both;",
    "# forebay run --print-settings shows each value and where it came from.",
    "# No secrets here: credentials come from the AWS SDK's own chain.",
    "",
    "# Where the run lies: s3://bucket/prefix/name or file:directory/name",
    address === null ? "# address: s3://bucket/prefix/name" : `address: ${quote(address)}`,
  ];
  let group = "";
  for (const key of settingsOfVerb("run")) {
    const setting = SETTINGS[key];
    if (setting.group !== group) lines.push("", `# --- ${setting.group} ---`);
    group = setting.group;
    const value = texts[setting.name];
    lines.push("", `# ${setting.doc}`);
    if (value !== undefined) lines.push(`${setting.name}: ${yamlOf(value)}`);
    else lines.push(`# ${setting.name}: ${setting.example ?? showValue(key, setting.default)}`);
  }
  return `${lines.join("\n")}\n`;
}

const NAMES = SETTING_KEYS.map((key) => SETTINGS[key].name);

function suggestion(name: string): string {
  const near = nearestName(name.replaceAll("_", "-"), [...NAMES, "address"]);
  return near === null ? "forebay init writes a file with every setting" : `did you mean ${near}?`;
}

/** Text of a scalar, texts of a list of scalars, null for an empty value, undefined for anything else. */
function textOf(node: unknown): SettingText | null | undefined {
  if (node === null || node === undefined) return null;
  if (isScalar(node)) return node.value === null ? null : scalarText(node);
  if (!isSeq(node)) return undefined;
  const texts = node.items.map((item) =>
    isScalar(item) && item.value !== null ? scalarText(item) : undefined,
  );
  return texts.includes(undefined) ? undefined : (texts as string[]);
}

/** As it stands in the file: YAML reads 1_000 or 0x10 as numbers, we do not. */
function scalarText(scalar: { source?: string; value?: unknown }): string {
  return typeof scalar.value === "string" ? scalar.value : (scalar.source ?? String(scalar.value));
}

function yamlOf(text: SettingText): string {
  return Array.isArray(text) ? `[${text.map(quote).join(", ")}]` : quote(text);
}

function quote(text: string): string {
  return /^[A-Za-z/.][\w./@=-]*$|^\d+$/.test(text) && !/^(?:true|false|null|yes|no|on|off)$/i.test(text)
    ? text
    : JSON.stringify(text);
}
