import { join } from "node:path";
import { FILES, LaunchRecord, readRecord } from "../control/run-directory.ts";
import { damagedLaunch, settingsOfLaunch } from "./launch.ts";
import { runPlace } from "./run-place.ts";
import type { VerbSpec } from "./verb.ts";

/** What the keeper starts: `forebay supervise RUN_DIRECTORY`; everything else stands in launch.json there. */
export const superviseVerb: VerbSpec = {
  name: "supervise",
  settings: null,
  hidden: true,
  outlivesReader: true,
  summary: "one supervisor as launch.json says (started by the keeper behind --detach)",
  arguments: [["<directory>", "the run directory"]],
  examples: ["forebay supervise ~/.local/state/forebay/name-1a2b3c4d"],
  async run(call) {
    const directory = call.args[0]!;
    const launch = readRecord(join(directory, FILES.launch), LaunchRecord);
    if (!launch) throw damagedLaunch(directory);
    const settings = settingsOfLaunch(launch);
    const place = runPlace({ ...call, settings, address: launch.address }, launch.address);
    const { supervise } = await import("./supervise.ts");
    return supervise({ io: call.io, verb: launch.verb, place, settings, json: false, kept: true });
  },
};
