import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import type { Resolved } from "../config/resolve.ts";
import { SETTINGS } from "../config/settings.ts";
import { FILES, type LaunchRecord, lookAtRunDirectory, writeRecord } from "../control/run-directory.ts";
import { openDataset } from "../dataset/open.ts";
import { assertAttachments } from "../run/publish-inputs.ts";
import type { StatusDocument } from "../run/status.ts";
import { goDetached } from "./detached.ts";
import { ENGINES, type EngineName, foreignKeys, namedEngine } from "./engine-flags.ts";
import { refuseMisfits } from "./extract-options.ts";
import { printJson, say } from "./io.ts";
import { launchOf, settingsOfLaunch } from "./launch.ts";
import { runPlace } from "./run-place.ts";
import { standingLines, standingOf } from "./standing.ts";
import { askToStop, untilGone } from "./stop.ts";
import type { VerbSpec } from "./verb.ts";

export const restart: VerbSpec = {
  name: "restart",
  settings: "restart",
  summary: "stop a run gracefully and go on with new settings; nothing is lost",
  arguments: [["[address]", "the run"]],
  examples: [
    "forebay restart s3://bucket/prefix/name --engines 8",
    "forebay restart s3://bucket/prefix/name --spool-bytes 400GiB --uploads 200",
  ],
  async run(call) {
    const { io, json } = call;
    const place = runPlace(call);
    const standing = await standingOf(place.directory);
    for (const line of standingLines(standing)) say(io, line);
    const before = standing.look.launch;
    if (!before) throw neverRan(place.address, place.directory);
    const atWork = engineAtWork(standing.status);
    const { launch, changed } = withChanges(before, call.settings, atWork);
    await refuseEarly(launch, engineOf(launch, atWork));
    for (const line of changed.length ? changed : ["no setting changed"]) say(io, `change     ${line}`);

    writeRecord(join(place.directory, FILES.launch), launch);
    // A living keeper starts the next supervisor itself, with the environment (and credentials) that it has.
    const kept = standing.look.keeper?.alive === true && standing.look.keeper.record.state !== "ended";
    // Between two supervisors there is nothing to stop: the next one reads the new settings.
    if (standing.look.supervisor?.alive) {
      await askToStop(standing.look, "forebay restart");
      await untilGone(place.directory, io, { keeperToo: false });
    }
    const stillKept = kept && lookAtRunDirectory(place.directory).keeper?.alive === true;
    // Only now: the old supervisor commits what it holds until it is gone.
    const sinceMs = Date.now();
    const exitCode = await goDetached({ io, place, json: false, sinceMs, startKeeper: !stillKept, before });
    if (json) printJson(io, { address: place.address, changed, exit_code: exitCode });
    return exitCode === EXIT.done ? EXIT.done : exitCode;
  },
};

/** Throws what the next supervisor would, as far as it can be told without the store: a run that is well goes on. */
async function refuseEarly(launch: LaunchRecord, engine: EngineName | null): Promise<void> {
  const settings = settingsOfLaunch(launch);
  const { dataset, split, attach } = settings.values;
  refuseMisfits(settings, engine);
  assertAttachments(attach);
  if (launch.verb === "run" && dataset !== null) await openDataset(dataset, { split: split ?? undefined });
}

/** As the launch names it, else the one `atWork`; null where neither tells. */
function engineOf(launch: LaunchRecord, atWork: EngineName | null): EngineName | null {
  return namedEngine(settingsOfLaunch(launch)) ?? atWork;
}

function engineAtWork(status: StatusDocument | null): EngineName | null {
  const label = status?.engines[0]?.name ?? "";
  return ENGINES.find((name) => label.startsWith(`${name}-`)) ?? null;
}

/** The launch record of the next generation, and each change in words. `atWork`: null where it is not known. */
export function withChanges(
  before: LaunchRecord,
  asked: Resolved,
  atWork: EngineName | null,
): { launch: LaunchRecord; changed: string[] } {
  // Only what this command line says: run.yaml and the environment were read when the run was launched.
  const flags = launchOf(asked, (source) => source === "flag");
  const settings = { ...before.settings, ...flags };
  // Servers that run and servers that are started here exclude each other.
  if (flags.vllm && !flags.serve) delete settings.serve;
  if (flags.serve && asked.values.serve && !flags.vllm) delete settings.vllm;
  // What was for another engine would be refused, where it was a flag.
  const merged = { ...before, settings };
  const engine = engineOf(merged, atWork);
  const foreign = engine === null ? [] : foreignKeys(settingsOfLaunch(merged).values, [engine]);
  for (const { name } of foreign.map((key) => SETTINGS[key])) {
    if (!flags[name] && settings[name]?.source === "flag") delete settings[name];
  }
  const names = new Set([...Object.keys(flags), ...Object.keys(before.settings)]);
  const changed = [...names].flatMap((name) => {
    const [was, is] = [before.settings[name], settings[name]].map((one) =>
      String(one?.text ?? "its default"),
    );
    return was === is ? [] : [`${name}: ${was} -> ${is}`];
  });
  const onExit = flags["on-exit"] ? String(flags["on-exit"].text) : before.onExit;
  return { launch: { ...before, generation: before.generation + 1, settings, onExit }, changed };
}

function neverRan(address: string, directory: string): RunError {
  return new RunError({
    op: "restart run",
    subject: address,
    message: `it has not run on this machine as this part (looked in ${directory})`,
    safe: "nothing was started",
    hint: `forebay resume ${address} --model DIR starts it here from the store`,
    exit: EXIT.usage,
  });
}
