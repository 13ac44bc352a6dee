import { accessSync, constants } from "node:fs";
import { availableParallelism } from "node:os";
import { resolve } from "node:path";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { plainText } from "../base/log.ts";
import { requireSetting } from "../config/resolve.ts";
import { type TokenizeResult, tokenizeConversations } from "../dataset/tokenize.ts";
import { rowsAsked } from "./extract-options.ts";
import { printJson, printLine, say } from "./io.ts";
import { countText } from "./progress-lines.ts";
import type { VerbSpec } from "./verb.ts";

/** Beyond this the reader is the limit. */
const THREADS_MAX = 8;
const REFUSED_SHOWN = 10;

export const tokenize: VerbSpec = {
  name: "tokenize",
  settings: "tokenize",
  summary: "conversations (JSONL or Parquet) to a dataset of token ids and loss masks",
  options: [
    ["--input <path>", "JSONL or Parquet with conversations or messages"],
    ["--output <path>", "save_to_disk directory to write"],
    ["--messages-key <name>", "column of the messages (default: messages, else conversations)"],
  ],
  examples: [
    "forebay tokenize --model models/Qwen3-8B --input chats.jsonl --output data/train",
    "forebay tokenize --model DIR --input chats.parquet --output DIR --max-tokens 4096 --long truncate --limit 1000",
  ],
  async run({ io, settings, options, json }) {
    const { maxTokens, long } = settings.values;
    const progress = io.stderrIsTty
      ? ({ rows }: { rows: number }) => io.stderr(`\rtokenising: ${countText(rows)} rows\u001b[K`)
      : undefined;
    const input = resolve(io.directory, requireOption(options.input, "--input", "the conversations"));
    const result = await tokenizeConversations({
      modelDir: needReadable(requireSetting(settings, "model"), "--model", "directory"),
      input: needReadable(input, "--input", "file"),
      output: resolve(io.directory, requireOption(options.output, "--output", "the directory to write")),
      messagesKey: options.messagesKey as string | undefined,
      threads: Math.min(THREADS_MAX, availableParallelism()),
      ...rowsAsked(settings),
      maxTokens,
      long,
      signal: io.signal,
      onProgress: progress,
    });
    if (progress) io.stderr("\r\u001b[K");
    for (const { row, reason } of result.refused.slice(0, REFUSED_SHOWN)) {
      say(io, `row ${row} was left out: ${plainText(reason, 300)}`);
    }
    if (json) printJson(io, result);
    else for (const line of resultLines(result)) printLine(io, line);
    return result.refusedCount === 0 ? EXIT.done : EXIT.doneWithSkips;
  },
};

function resultLines(result: TokenizeResult): string[] {
  const { rows, tokens, lossTokens, refusedCount, longSkipped, longTruncated, rowsWithoutLoss } = result;
  const facts: [number, string][] = [
    [refusedCount, "could not be tokenised rightly and were left out"],
    [longSkipped, "were too long and were left out"],
    [longTruncated, "were cut to --max-tokens"],
    [rowsWithoutLoss, "have nothing to learn from (mask all 0)"],
  ];
  return [
    `wrote ${result.output}: ${countText(rows)} rows, ${countText(tokens)} tokens, ${countText(lossTokens)} supervised`,
    ...facts.flatMap(([count, what]) => (count === 0 ? [] : [`${countText(count)} rows ${what}`])),
    `next: forebay plan --model DIR --dataset ${result.output} --taps ...`,
  ];
}

/** Said before the output is begun. */
function needReadable(path: string, flag: string, what: string): string {
  try {
    accessSync(path, constants.R_OK);
    return path;
  } catch (cause) {
    throw new RunError({
      op: "tokenise",
      subject: path,
      message: errnoOf(cause) === "ENOENT" ? `no such ${what}` : "it cannot be read",
      safe: "nothing was written",
      hint: `check ${flag}`,
      exit: EXIT.configuration,
      cause,
    });
  }
}

function requireOption(value: unknown, flag: string, what: string): string {
  if (typeof value === "string" && value !== "") return value;
  throw new RunError({
    op: "read arguments",
    subject: flag,
    message: `${flag} is needed: ${what}`,
    safe: "nothing was written",
    hint: `add ${flag} <path>`,
    exit: EXIT.usage,
  });
}
