import { resolve } from "node:path";
import { formatBytes } from "../base/bytes.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { exportSpeculators } from "../run/export.ts";
import { loadStoredRun } from "../run/stored-run.ts";
import { printJson, printLine, say } from "./io.ts";
import { withStore } from "./open-store.ts";
import { runPlace } from "./run-place.ts";
import type { VerbSpec } from "./verb.ts";

export const exportVerb: VerbSpec = {
  name: "export",
  settings: "read",
  summary:
    "write a run as files for trainers that do not read packs: Forebay's readers for torch and speculators need no export",
  arguments: [
    ["<address>", "the run"],
    ["<directory>", "where the files go"],
  ],
  options: [["--as <trainer>", 'whose files: "speculators" (hs_<row>.safetensors)']],
  examples: ["forebay export s3://bucket/prefix/name states --as speculators"],
  async run(call) {
    const { io, args, options, json } = call;
    if (options.as !== "speculators") throw unknownTrainer(options.as);
    const place = runPlace(call, args[0]);
    const directory = resolve(io.directory, args[1]!);
    const result = await withStore(place.spec, io, async (store) => {
      const run = await loadStoredRun(store, { cacheDirectory: null, signal: io.signal });
      const { maxTokens, long } = run.plan.options;
      if (long === "truncate" && maxTokens !== null) {
        say(
          io,
          `rows were cut at ${maxTokens} tokens: the trainer's rows must be cut alike, or it drops them`,
        );
      }
      return exportSpeculators(store, run, directory, { signal: io.signal });
    });
    if (json) printJson(io, { ...result, directory });
    else {
      const { written, kept, skipped, missing, bytes } = result;
      printLine(
        io,
        `${written} samples written to ${directory} (${formatBytes(bytes)}), ${kept} were there already`,
      );
      if (skipped > 0) printLine(io, `${skipped} have no states: no engine could do them`);
      if (missing > 0) printLine(io, `${missing} are not extracted yet: forebay status ${place.address}`);
    }
    if (result.missing > 0) return EXIT.retryLater;
    return result.skipped > 0 ? EXIT.doneWithSkips : EXIT.done;
  },
};

function unknownTrainer(found: unknown): RunError {
  return new RunError({
    op: "read arguments",
    subject: "--as",
    message:
      found === undefined
        ? "the trainer is not named"
        : `expected speculators, found "${String(found).slice(0, 40)}"`,
    hint: "forebay export ADDRESS DIR --as speculators",
    exit: EXIT.usage,
  });
}
