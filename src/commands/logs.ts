import { closeSync, existsSync, fstatSync, openSync, readdirSync, statSync } from "node:fs";
import { join } from "node:path";
import { sleep } from "../base/backoff.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { type LogEvent, plainText } from "../base/log.ts";
import { readUpToSync } from "../base/read-exactly.ts";
import { FILES } from "../control/run-directory.ts";
import type { Io } from "./io.ts";
import { eventLine } from "./progress.ts";
import { runPlace } from "./run-place.ts";
import type { VerbSpec } from "./verb.ts";

const POLL_MS = 300;
/** What is looked at for the last lines. */
const TAIL_BYTES_MAX = 1 << 20;

export const logs: VerbSpec = {
  name: "logs",
  settings: "logs",
  summary: "the event log of a run on this machine, or the output of one of its engines",
  arguments: [["[address]", "the run"]],
  options: [
    ["-f, --follow", "go on as it grows"],
    ["-n, --lines <n>", "how many of the last lines (default: 50)"],
    ["--engine <n>", "the output of engine n instead"],
    ["--keeper", "the output of the parent behind --detach instead"],
  ],
  examples: [
    "forebay logs s3://bucket/prefix/name -f",
    "forebay logs file:runs/first --engine 0 -n 200",
    "forebay logs file:runs/first --json | jq -r .event",
  ],
  async run(call) {
    const { io, options, json } = call;
    const { directory, address } = runPlace(call);
    const engine = options.engine as string | undefined;
    if (engine !== undefined && !/^\d+$/.test(engine)) throw badCount("--engine", engine);
    const name = options.keeper
      ? FILES.keeperLog
      : engine === undefined
        ? FILES.events
        : engineLogName(directory, engine);
    const path = join(directory, name);
    if (!existsSync(path)) {
      throw new RunError({
        op: "read log",
        subject: path,
        message: `there is no such log: ${address} has not run on this machine, or not as this part`,
        hint: "forebay status ADDRESS shows where it runs; --part i/N or --run-dir name another",
        exit: EXIT.usage,
      });
    }
    const lines = /^\d+$/.test(String(options.lines ?? 50)) ? Number(options.lines ?? 50) : null;
    if (lines === null) throw badCount("--lines", String(options.lines));
    const show = (line: string) => io.stdout(`${json ? plainText(line, TAIL_BYTES_MAX) : shownLine(line)}\n`);
    const end = showTail(path, lines, show);
    if (options.follow === true) await follow(path, end, show, io);
    return EXIT.done;
  },
};

/** Each kind of engine names its log after itself: onnx-0.log. */
function engineLogName(directory: string, engine: string): string {
  const names = existsSync(directory) ? readdirSync(directory) : [];
  return names.find((name) => /^[a-z]+-(\d+)\.log$/.exec(name)?.[1] === engine) ?? `engine-${engine}.log`;
}

/** An event as words; anything else as it is, made harmless. */
function shownLine(line: string): string {
  try {
    return plainText(eventLine(JSON.parse(line) as LogEvent));
  } catch {
    return plainText(line);
  }
}

/** Shows the last `count` lines; returns where the file ended. */
function showTail(path: string, count: number, show: (line: string) => void): number {
  const fd = openSync(path, "r");
  try {
    const { size } = fstatSync(fd);
    const start = Math.max(0, size - TAIL_BYTES_MAX);
    const lines = readText(fd, start, size).split("\n");
    if (start > 0) lines.shift();
    const unfinished = lines.pop() ?? "";
    for (const line of count === 0 ? [] : lines.slice(-count)) show(line);
    return size - Buffer.byteLength(unfinished);
  } finally {
    closeSync(fd);
  }
}

/** Shows what is appended until the signal; a rotated file (another inode, or shorter) is begun anew. */
async function follow(path: string, from: number, show: (line: string) => void, io: Io): Promise<void> {
  let position = from;
  let inode = statSync(path).ino;
  while (!io.signal.aborted) {
    await sleep(POLL_MS, io.signal).catch(() => {});
    const stat = existsSync(path) ? statSync(path) : null;
    if (!stat) continue;
    if (stat.ino !== inode || stat.size < position) position = 0;
    inode = stat.ino;
    if (stat.size === position) continue;
    const fd = openSync(path, "r");
    try {
      const text = readText(fd, position, Math.min(stat.size, position + TAIL_BYTES_MAX));
      const end = text.lastIndexOf("\n") + 1;
      if (end === 0) continue;
      for (const line of text.slice(0, end - 1).split("\n")) show(line);
      position += Buffer.byteLength(text.slice(0, end));
    } finally {
      closeSync(fd);
    }
  }
}

function readText(fd: number, startByte: number, endByte: number): string {
  const buffer = Buffer.alloc(endByte - startByte);
  return buffer.subarray(0, readUpToSync(fd, buffer, startByte)).toString("utf8");
}

function badCount(flag: string, found: string): RunError {
  return new RunError({
    op: "read setting",
    subject: flag,
    message: `expected a whole number, found "${found}"`,
    hint: `${flag} 0`,
    exit: EXIT.usage,
  });
}
