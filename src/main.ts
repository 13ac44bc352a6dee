import { setMaxListeners } from "node:events";
import { readFileSync } from "node:fs";
import { Command, CommanderError } from "commander";
import { EXIT, RunError } from "./base/errors.ts";
import { type Io, SignalReceived } from "./commands/io.ts";
import { errorText, exitCodeFor } from "./commands/print-error.ts";
import { register } from "./commands/verb.ts";
import { VERBS, verbsFor } from "./commands/verbs.ts";

// The SDK tells every process about Node versions of next year; package.json's `engines` is where we decide that.
process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED ??= "true";

const stop = new AbortController();
// Every request under way listens to it: many at once, none for long.
setMaxListeners(0, stop.signal);
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"] as const) {
  process.on(signal, () => {
    // The second signal means now: what is in the spool and the store is safe at any instant.
    if (stop.signal.aborted) process.exit(new SignalReceived(signal).exitCode);
    stop.abort(new SignalReceived(signal));
  });
}

// A reader that went away (`forebay logs | head`, a closed terminal) ends a look, but never a run.
const closed = { stdout: false, stderr: false };
let outlivesReader = false;
for (const name of ["stdout", "stderr"] as const) {
  process[name].on("error", () => {
    closed[name] = true;
    if (name === "stdout" && !outlivesReader) process.exit(EXIT.done);
  });
}

const io: Io = {
  stdout: (text) => void (closed.stdout || process.stdout.write(text)),
  stderr: (text) => void (closed.stderr || process.stderr.write(text)),
  env: process.env,
  directory: process.cwd(),
  stderrIsTty: process.stderr.isTTY === true,
  stdoutIsTty: process.stdout.isTTY === true,
  columns: () => Number(process.env.COLUMNS) || process.stderr.columns || 80,
  signal: stop.signal,
};

process.exit(await main(process.argv));

async function main(argv: string[]): Promise<number> {
  const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
    version: string;
  };
  let exitCode: number = EXIT.done;
  const program = new Command("forebay")
    .description("A target model's hidden states as a verified dataset in object storage.")
    .version(version)
    .showSuggestionAfterError(true)
    // What commander has to say is said in our own way below.
    .configureOutput({ writeOut: io.stdout, writeErr: io.stderr, outputError: () => {} })
    .exitOverride()
    .addHelpText(
      "after",
      "\nFirst steps:\n  $ forebay demo\n  $ forebay init\n  $ forebay doctor s3://bucket/prefix/name\n" +
        "\nExit codes: 0 done, 2 usage, 3 done with skips, 4 another run stands there, 5 locked, 6 store, 7 engine," +
        "\n8 disk, 9 integrity, 75 try again later, 78 configuration, 130/143 stopped by a signal",
    );
  for (const spec of await verbsFor(argv[2])) {
    register(program, spec, io, {
      begin: (verb) => {
        outlivesReader = verb.outlivesReader === true;
      },
      done: (code) => {
        exitCode = code;
      },
    });
  }
  try {
    await program.parseAsync(withServerArguments(argv));
  } catch (thrown) {
    if (thrown instanceof CommanderError && thrown.exitCode === 0) return EXIT.done;
    // No verb at all: the help it has printed is the answer.
    if (thrown instanceof CommanderError && thrown.code === "commander.help") return EXIT.usage;
    const error = thrown instanceof CommanderError ? misspelt(thrown, argv) : thrown;
    io.stderr(errorText(error, argv.includes("--json")));
    exitCode = exitCodeFor(error);
  }
  await flushed();
  return exitCode;
}

/** What follows `--` is for the servers of --serve: `-- --max-model-len 8192` is two times --vllm-arg. */
function withServerArguments(argv: string[]): string[] {
  const at = argv.indexOf("--");
  if (at < 0) return argv;
  return [...argv.slice(0, at), ...argv.slice(at + 1).map((word) => `--vllm-arg=${word}`)];
}

/** commander's "error: unknown option '--x'\n(Did you mean --y?)" as one of our own. */
function misspelt(error: CommanderError, argv: string[]): RunError {
  const [what = "", suggestion] = error.message.replace(/^error: /, "").split("\n");
  const verb = argv[2] !== undefined && Object.hasOwn(VERBS, argv[2]) ? ` ${argv[2]}` : "";
  return new RunError({
    op: "read arguments",
    subject: `forebay${verb}`,
    message: what.trim() || "no verb is named",
    safe: "nothing was started",
    hint: suggestion?.replace(/^\((.*)\)$/, "$1") || `forebay${verb} --help shows what there is`,
    exit: EXIT.usage,
  });
}

/** process.exit drops what a pipe has not taken yet. */
async function flushed(): Promise<void> {
  for (const name of ["stdout", "stderr"] as const) {
    if (closed[name]) continue;
    await new Promise<void>((resolve) => {
      process[name].write("", () => resolve());
    });
  }
}
