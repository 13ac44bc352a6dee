import { hostname } from "node:os";
import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import { requireSetting } from "../config/resolve.ts";
import { SETTINGS, settingsOfVerb, showValue } from "../config/settings.ts";
import {
  FILES,
  type LaunchRecord,
  lookAtRunDirectory,
  makeRunDirectory,
  writeRecord,
} from "../control/run-directory.ts";
import { requireTaps } from "./chosen-taps.ts";
import { goDetached } from "./detached.ts";
import { printJson, printLine, tableLines } from "./io.ts";
import { launchOf } from "./launch.ts";
import { type RunPlace, runPlace } from "./run-place.ts";
import type { Call, VerbSpec } from "./verb.ts";

const PRINT_SETTINGS: [string, string] = [
  "--print-settings",
  "show each setting and where it comes from, and stop",
];

export const run: VerbSpec = {
  name: "run",
  settings: "run",
  outlivesReader: true,
  summary: "extract a dataset's hidden states into a store; the same command resumes",
  arguments: [["[address]", "s3://bucket/prefix/name or file:directory/name"]],
  options: [PRINT_SETTINGS],
  examples: [
    "forebay run file:runs/first --model models/Qwen3-8B --dataset data/train --taps 1,17,33",
    "forebay run s3://bucket/prefix/name --model DIR --dataset DIR --for zlab --spool-bytes 200GiB --detach",
    "forebay run s3://bucket/name --endpoint http://127.0.0.1:9000 --config run.yaml",
    "forebay run --print-settings",
  ],
  run: (call) => startRun(call, "run"),
};

export const resume: VerbSpec = {
  name: "resume",
  settings: "resume",
  outlivesReader: true,
  summary: "go on with a run from the store alone, on any machine",
  arguments: [["[address]", "the run"]],
  options: [PRINT_SETTINGS],
  examples: [
    "forebay resume s3://bucket/prefix/name --model models/Qwen3-8B",
    "forebay resume s3://bucket/prefix/name --model DIR --part 2/4 --take-over --detach",
  ],
  run: (call) => startRun(call, "resume"),
};

async function startRun(call: Call, verb: "run" | "resume"): Promise<number> {
  const { io, settings, json } = call;
  if (call.options.printSettings === true) {
    printSettings(call, verb);
    return EXIT.done;
  }
  // All that can be said without touching anything is said first.
  const place = runPlace(call);
  requireSetting(settings, "model");
  if (verb === "run") {
    requireSetting(settings, "dataset");
    requireTaps(settings);
  }
  refuseSecond(place);
  const launchFile = join(place.directory, FILES.launch);
  const writeLaunch = () => writeRecord(launchFile, launchRecord(call, verb, place));
  if (settings.values.detach) {
    const sinceMs = Date.now();
    makeRunDirectory(place.directory);
    const before = lookAtRunDirectory(place.directory).launch;
    writeLaunch();
    return goDetached({ io, place, json, sinceMs, startKeeper: true, before });
  }
  // Loaded only here: engines, uploads and the page are much to read for a verb that only looks.
  const { supervise } = await import("./supervise.ts");
  return supervise({ io, verb, place, settings, json, kept: false, onAccepted: writeLaunch });
}

function launchRecord(call: Call, verb: "run" | "resume", place: RunPlace): LaunchRecord {
  const before = lookAtRunDirectory(place.directory).launch;
  const settings = launchOf(call.settings);
  // These two found the place; the next process must find it with the same.
  settings["run-dir"] = { text: place.directory, source: settings["run-dir"]?.source ?? "flag" };
  const { spec } = place;
  if (spec.kind === "s3") addStoreSettings(settings, spec);
  return {
    generation: (before?.generation ?? 0) + 1,
    verb,
    address: place.address,
    directory: call.io.directory,
    settings,
    onExit: call.settings.values.onExit,
  };
}

/** What came from the SDK's own variables is written down too: a keeper's environment may be another one day. */
function addStoreSettings(
  settings: LaunchRecord["settings"],
  spec: { endpoint: string | null; region: string; profile: string | null },
): void {
  const add = (name: string, text: string | null) => {
    if (text !== null) settings[name] ??= { text, source: "environment" };
  };
  add("endpoint", spec.endpoint);
  add("region", spec.region);
  add("profile", spec.profile);
}

/** A friendly refusal on this machine; the part's heartbeat in the store refuses those of other machines. */
function refuseSecond(place: RunPlace): void {
  const { supervisor, keeper } = lookAtRunDirectory(place.directory);
  const alive = supervisor?.alive ? supervisor.record.process : keeper?.alive ? keeper.record.process : null;
  if (!alive) return;
  throw new RunError({
    op: "start run",
    subject: place.address,
    message: `it runs already on this machine (${hostname()}, pid ${alive.pid})`,
    safe: "that run goes on as it was",
    hint: `forebay status ${place.address}, forebay stop ${place.address}, or forebay restart with new settings`,
    exit: EXIT.locked,
  });
}

function printSettings({ io, settings, address, json }: Call, verb: "run" | "resume"): void {
  const keys = settingsOfVerb(verb);
  if (json) {
    const shown = keys.map((key) => [
      SETTINGS[key].name,
      { value: settings.values[key], source: settings.sources[key] },
    ]);
    printJson(io, { address, settings: Object.fromEntries(shown) });
    return;
  }
  const rows = keys.map((key) => [
    SETTINGS[key].name,
    showValue(key, settings.values[key]),
    settings.sources[key],
  ]);
  for (const line of tableLines([["address", address ?? "-", ""], ...rows])) printLine(io, line);
}
