import { type ChildProcessByStdio, spawn, spawnSync } from "node:child_process";
import { createInterface } from "node:readline";
import type { Readable } from "node:stream";
import { errnoOf } from "../base/errors.ts";
import { type Log, plainText } from "../base/log.ts";
import type { EngineStatus } from "../run/status.ts";

type GpuFigures = NonNullable<EngineStatus["gpu"]>;

/** One card as nvidia-smi sees it: physical index, whatever CUDA_VISIBLE_DEVICES makes of it. */
export interface GpuReading {
  /** "GPU-22b2c6ac-...": what engines name their device by. Null where the driver does not say. */
  uuid: string | null;
  gpu: GpuFigures;
}

export interface GpuWatchOptions {
  /** Default "nvidia-smi". */
  command?: string;
  env: NodeJS.ProcessEnv;
  log: Log;
  /** Monotonic. */
  nowMs: () => number;
  /** Seconds between readings. Default 2. */
  everyS?: number;
}

export interface GpuWatch {
  /** The newest reading of every card; figures are null once they are old. Empty where there is no GPU. */
  readings(): GpuReading[];
  close(): void;
}

const QUERY = "index,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu,name";
/** A driver in trouble lets nvidia-smi hang for minutes; what it said before is then history. */
const OLD_AFTER_MS = 15_000;
const RESTART_MS_MIN = 10_000;
const RESTART_MS_MAX = 300_000;
const MIB = 2 ** 20;
const FORMAT = "--format=csv,noheader,nounits";
/** With many cards and no driver kept loaded it takes seconds. */
const READ_MS_MAX = 15_000;

/** The cards as they are now, asked once. Empty where there are none, no such command, or a driver that hangs. */
export function readGpus(env: NodeJS.ProcessEnv, command = "nvidia-smi"): GpuReading[] {
  const { stdout } = spawnSync(command, [`--query-gpu=${QUERY}`, FORMAT], {
    env,
    encoding: "utf8",
    timeout: READ_MS_MAX,
    killSignal: "SIGKILL",
  });
  return (stdout ?? "").split("\n").flatMap((line) => parseGpuLine(line) ?? []);
}

/**
 * Follows the cards through one long nvidia-smi child, which needs no native build of ours. A machine without
 * the command has no readings, and no error: engines run on CPUs too.
 */
export function watchGpus({
  command = "nvidia-smi",
  env,
  log,
  nowMs,
  everyS = 2,
}: GpuWatchOptions): GpuWatch {
  const readings = new Map<number, { reading: GpuReading; atMs: number }>();
  let child: ChildProcessByStdio<null, Readable, Readable> | null = null;
  let timer: NodeJS.Timeout | null = null;
  let restartMs = RESTART_MS_MIN;
  let closed = false;

  const start = () => {
    const started = spawn(command, [`--query-gpu=${QUERY}`, FORMAT, "-l", String(everyS)], {
      env,
      stdio: ["ignore", "pipe", "pipe"],
    });
    child = started;
    let said = "";
    started.stderr.on("data", (bytes: Buffer) => {
      said = (said + bytes.toString()).slice(-300);
    });
    createInterface({ input: started.stdout }).on("line", (line) => {
      const reading = parseGpuLine(line);
      if (reading) {
        readings.set(reading.gpu.index, { reading, atMs: nowMs() });
        restartMs = RESTART_MS_MIN;
      } else if (line.trim() !== "") {
        said = line.slice(0, 300);
      }
    });
    let ended = false;
    const onEnd = (missing: boolean, code: number | null) => {
      if (ended || closed) return;
      ended = true;
      child = null;
      if (missing) return;
      log.info("gpu.watch_ended", { code, said: plainText(said, 300), retry_s: restartMs / 1_000 });
      timer = setTimeout(start, restartMs);
      timer.unref();
      restartMs = Math.min(RESTART_MS_MAX, restartMs * 2);
    };
    started.on("error", (error) => onEnd(errnoOf(error) === "ENOENT" || errnoOf(error) === "EACCES", null));
    started.on("close", (code) => onEnd(false, code));
  };
  start();

  return {
    readings: () =>
      [...readings.values()]
        .sort((a, b) => a.reading.gpu.index - b.reading.gpu.index)
        .map(({ reading, atMs }) => (nowMs() - atMs > OLD_AFTER_MS ? withoutFigures(reading) : reading)),
    close: () => {
      closed = true;
      if (timer) clearTimeout(timer);
      child?.kill("SIGTERM");
    },
  };
}

/**
 * One line of `nvidia-smi --query-gpu=index,uuid,...,name --format=csv,noheader,nounits`; null where it
 * is not one ("No devices were found", a driver's complaint). Whatever is not a number ("[N/A]",
 * "[Not Supported]", "[Unknown Error]", "ERR!", "[GPU requires reset]") is unknown: null.
 */
export function parseGpuLine(line: string): GpuReading | null {
  const cells = line.split(",").map((cell) => cell.trim());
  if (cells.length !== QUERY.split(",").length) return null;
  const [index, uuid, util, memoryUsed, memoryTotal, power, temperature, name] = cells.map(String);
  if (!/^\d{1,4}$/.test(index!)) return null;
  const mebibytes = (cell: string) => {
    const value = figure(cell);
    return value === null ? null : Math.round(value * MIB);
  };
  return {
    uuid: /^(?:GPU|MIG)-[0-9a-f-]+$/i.test(uuid!) ? uuid! : null,
    gpu: {
      index: Number(index),
      // A card in trouble has a complaint in brackets for a name.
      name: /^[A-Za-z]/.test(name!) && name !== "N/A" && name !== "ERR!" ? name! : null,
      util: figure(util!),
      mem_used: mebibytes(memoryUsed!),
      mem_total: mebibytes(memoryTotal!),
      power: figure(power!),
      temp: figure(temperature!),
    },
  };
}

function figure(cell: string): number | null {
  return /^\d+(?:\.\d+)?$/.test(cell) ? Number(cell) : null;
}

function withoutFigures({ uuid, gpu }: GpuReading): GpuReading {
  return {
    uuid,
    gpu: {
      index: gpu.index,
      name: gpu.name,
      util: null,
      mem_used: null,
      mem_total: null,
      power: null,
      temp: null,
    },
  };
}
