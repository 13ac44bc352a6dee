import { existsSync } from "node:fs";
import { isAbsolute, join, resolve } from "node:path";
import { type Command, Option } from "commander";
import { EXIT, RunError, stillSafe } from "../base/errors.ts";
import { type Resolved, type RunYaml, resolveSettings, type SettingTexts } from "../config/resolve.ts";
import { SETTINGS, settingsOfVerb, showValue, type Verb } from "../config/settings.ts";
import { resolveModel } from "../model/hub.ts";
import { type AwsProfile, readAwsProfile } from "../store/aws-profile.ts";
import type { Io } from "./io.ts";

/** One verb as its file describes it; main.ts makes a commander command of it. */
export interface VerbSpec {
  name: string;
  /** Whose settings it takes; null: none. */
  settings: Verb | null;
  summary: string;
  /** commander's notation and a description: ["[address]", "the run"]. */
  arguments?: [notation: string, description: string][];
  /** Flags that are no settings: they mean nothing outside this one call. */
  options?: [flags: string, description: string][];
  /** Whole command lines, shown under --help. */
  examples: string[];
  hidden?: boolean;
  /** True for verbs that must go on when nobody reads their output any more. */
  outlivesReader?: boolean;
  /** Resolves with the exit code. */
  run(call: Call): Promise<number>;
}

export interface Call {
  io: Io;
  /** Positional arguments as they were given. */
  args: string[];
  /** Flags of `options`, by commander's names. */
  options: Record<string, unknown>;
  settings: Resolved;
  json: boolean;
  /** What the AWS profile in use says; nothing for a directory. */
  awsProfile: AwsProfile;
  /** The run's address: the first argument, else run.yaml's. Null where neither names one. */
  address: string | null;
}

/** Makes a commander command of `spec`; `begin` hears which verb it is before it runs, `done` how it ended. */
export function register(
  program: Command,
  spec: VerbSpec,
  io: Io,
  on: { begin: (spec: VerbSpec) => void; done: (exitCode: number) => void },
): void {
  const command = program.command(spec.name, { hidden: spec.hidden ?? false }).description(spec.summary);
  for (const [notation, description] of spec.arguments ?? []) command.argument(notation, description);
  for (const [flags, description] of spec.options ?? []) command.option(flags, description);
  if (spec.settings) addSettings(command, spec.settings);
  command.option("--json", "data as JSON on stdout");
  command.addHelpText("after", `\nExamples:\n${spec.examples.map((line) => `  $ ${line}`).join("\n")}`);
  command.action(async () => {
    on.begin(spec);
    try {
      on.done(await spec.run(await makeCall(spec, command, io)));
    } catch (error) {
      const { exit = null } = error instanceof RunError ? error : {};
      // What is wrong with a command is found before anything is begun.
      throw exit === EXIT.usage || exit === EXIT.configuration
        ? stillSafe(error, "nothing was started")
        : error;
    }
  });
}

function addSettings(command: Command, verb: Verb): void {
  for (const key of settingsOfVerb(verb)) {
    const { name, kind, doc, group, many, default: value } = SETTINGS[key];
    const shown = kind.isSwitch || value === null || many ? "" : ` (default: ${showValue(key, value)})`;
    const flags = kind.isSwitch ? [] : [`--${name} ${kind.placeholder}`];
    // A switch is offered in each direction that is not its default.
    if (kind.isSwitch && value !== true) flags.push(`--${name}`);
    if (kind.isSwitch && value !== false) flags.push(`--no-${name}`);
    for (const flag of flags) {
      // What is on unless told otherwise is described by what it does.
      const text = value === true ? `leave out ${doc}` : doc + shown;
      const option = new Option(flag, text).helpGroup(`${group}:`);
      // Collected as lists, so that a flag given twice can be refused by name where that has no meaning.
      if (!kind.isSwitch) option.argParser((text, before?: string[]) => [...(before ?? []), text]);
      command.addOption(option);
    }
  }
  command.addOption(
    new Option("--config <path>", "file of settings; default: run.yaml here, if there is one").helpGroup(
      "Control:",
    ),
  );
}

async function makeCall(spec: VerbSpec, command: Command, io: Io): Promise<Call> {
  const options = command.opts<Record<string, unknown>>();
  const verb = spec.settings;
  const file = verb ? await findRunYaml(options.config as string | undefined, io) : null;
  const flags: SettingTexts = {};
  for (const key of verb ? settingsOfVerb(verb) : []) {
    const { name, kind } = SETTINGS[key];
    const attribute = name.replaceAll(/-([a-z])/g, (_, letter: string) => letter.toUpperCase());
    const value = options[attribute];
    // commander gives a lone --no-x a default of true, which nobody wrote.
    const byPerson = command.getOptionValueSource(attribute) === "cli";
    if (value !== undefined && byPerson) flags[name] = kind.isSwitch ? String(value) : (value as string[]);
  }
  const settings = withModelFound(
    resolveSettings({ verb: verb ?? "ls", flags, env: verb ? io.env : {}, file, directory: io.directory }),
    io,
  );
  const address = command.args[0] ?? file?.address ?? null;
  const isS3 = address?.startsWith("s3://") === true;
  const awsProfile = isS3
    ? await readAwsProfile(settings.values.profile ?? (io.env.AWS_PROFILE || "default"), io.env)
    : { region: null, endpoint: null };
  return { io, args: command.args, options, settings, json: options.json === true, awsProfile, address };
}

/** A model given by its hub id is the directory in the Hugging Face cache from here on. */
function withModelFound(settings: Resolved, { directory, env }: Io): Resolved {
  const { model } = settings.values;
  if (model === null || isAbsolute(model)) return settings;
  const found = resolve(directory, resolveModel(model, env));
  return {
    ...settings,
    values: { ...settings.values, model: found },
    written: { ...settings.written, model: found },
  };
}

async function findRunYaml(named: string | undefined, io: Io): Promise<RunYaml | null> {
  const here = join(io.directory, "run.yaml");
  const path = (named ?? io.env.FOREBAY_CONFIG) || (existsSync(here) ? here : null);
  if (!path) return null;
  // A YAML parser is much to read for the many calls without a file.
  const { readRunYaml } = await import("../config/run-yaml.ts");
  return readRunYaml(resolve(io.directory, path));
}

/** The address, or a usage error that says how to give it. */
export function requireAddress(call: Call): string {
  if (call.address !== null) return call.address;
  throw new RunError({
    op: "read arguments",
    subject: "ADDRESS",
    message: "no run is named",
    safe: "nothing was started",
    hint: 'name it: s3://bucket/prefix/name or file:directory/name (or "address:" in run.yaml)',
    exit: EXIT.usage,
  });
}
