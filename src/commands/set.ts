import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import { didYouMean } from "../config/nearest.ts";
import { SETTINGS, settingKey } from "../config/settings.ts";
import { askSupervisor, type UploadSettings } from "../control/channel.ts";
import { FILES, writeRecord } from "../control/run-directory.ts";
import { printJson, printLine, say } from "./io.ts";
import { runPlace } from "./run-place.ts";
import { standingLines, standingOf } from "./standing.ts";
import type { VerbSpec } from "./verb.ts";

/** What a living run can change without stopping; everything else is `restart`'s. */
const CHANGEABLE = ["uploads", "inflight-bytes"];

export const set: VerbSpec = {
  name: "set",
  settings: "set",
  summary: "change the upload settings of a living run",
  arguments: [
    ["<address>", "the run"],
    ["<assignments...>", "uploads=N|auto, inflight-bytes=SIZE"],
  ],
  examples: [
    "forebay set s3://bucket/prefix/name uploads=200",
    "forebay set s3://bucket/prefix/name uploads=auto inflight-bytes=4GiB",
  ],
  async run(call) {
    const { io, args, json } = call;
    const place = runPlace(call, args[0]);
    const texts = new Map(args.slice(1).map(parseAssignment));
    const settings = parseSettings(texts);
    const standing = await standingOf(place.directory);
    for (const line of standingLines(standing)) say(io, line);
    const { supervisor, launch } = standing.look;
    if (!supervisor?.alive) throw notRunning(place.address, place.directory);
    const result = await askSupervisor(supervisor.record, { verb: "set", settings });
    if (launch) {
      // So that a supervisor that starts after this one has them too.
      for (const [name, text] of texts) launch.settings[name] = { text, source: "flag" };
      writeRecord(join(place.directory, FILES.launch), launch);
    }
    if (json) printJson(io, { address: place.address, changed: result });
    else for (const [name, text] of texts) printLine(io, `changed: ${name} = ${text}`);
    return EXIT.done;
  },
};

function parseAssignment(assignment: string): [name: string, text: string] {
  const at = assignment.indexOf("=");
  const name = at < 0 ? assignment : assignment.slice(0, at);
  if (at > 0 && CHANGEABLE.includes(name)) return [name, assignment.slice(at + 1)];
  const elsewhere = settingKey(name) !== undefined && !CHANGEABLE.includes(name);
  throw new RunError({
    op: "read arguments",
    subject: assignment,
    message: at < 1 ? "expected an assignment such as uploads=200" : `a living run cannot change "${name}"`,
    safe: "nothing was changed",
    hint: elsewhere
      ? `forebay restart ADDRESS --${name} ... loses nothing`
      : (didYouMean(name, CHANGEABLE) ?? `it can change ${CHANGEABLE.join(" and ")}`),
    exit: EXIT.usage,
  });
}

function parseSettings(texts: ReadonlyMap<string, string>): UploadSettings {
  const settings: UploadSettings = {};
  const uploads = texts.get("uploads");
  const inflight = texts.get("inflight-bytes");
  if (uploads !== undefined)
    settings.uploads = SETTINGS.uploads.kind.parse(uploads, "uploads", "") as "auto" | number;
  if (inflight !== undefined) {
    settings.inflightBytes = SETTINGS.inflightBytes.kind.parse(inflight, "inflight-bytes", "") as number;
  }
  return settings;
}

function notRunning(address: string, directory: string): RunError {
  return new RunError({
    op: "find run",
    subject: address,
    message: `no supervisor runs here (looked in ${directory})`,
    safe: "nothing was changed",
    hint: `forebay status ${address} shows where it runs; --part i/N or --run-dir name another`,
    exit: EXIT.usage,
  });
}
