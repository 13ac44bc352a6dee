import { formatBytes } from "../base/bytes.ts";
import type { PlanTotals } from "./plan.ts";

/** What the run would be given; null is unknown, and what rests on it stays unknown. */
export interface Resources {
  spoolBytes: number | null;
  /** The line's nominal rate: 1 Gb/s is 125,000,000. */
  uplinkBytesPerS: number | null;
  /** Tokens/s that one GPU (one engine) computes. */
  gpuTokensPerS: number | null;
  gpus: number;
  /** Price of the whole machine. */
  pricePerHour: number | null;
  /** A TB is 10^12 bytes, as stores bill it. */
  storagePricePerTbMonth: number | null;
  egressPricePerTb: number | null;
  /** Before each amount: "$". */
  currency: string;
}

export interface Estimate {
  /** GPUs alone, link never waiting. */
  computeHours: number | null;
  /** Link alone, GPUs never waiting. */
  uploadHours: number | null;
  /** The longer of the two; null unless both are known. */
  hours: number | null;
  limit: "compute" | "uplink" | "unknown";
  /** How many such GPUs this uplink keeps busy. */
  gpusFed: number | null;
  /** Nominal rate of an uplink that would keep all GPUs busy. */
  uplinkNeededBytesPerS: number | null;
  /** How long the GPUs go on while the store is away, the spool being empty at first. */
  spoolLastsS: number | null;
  /** Below this the run is refused: two packs an engine and one. */
  spoolBytesMin: number;
  objects: number;
  /** LISTs are those of one start or resume. */
  requests: { put: number; head: number; list: number };
  money: {
    currency: string;
    run: number | null;
    storagePerMonth: number | null;
    /** Reading every state back once. */
    epoch: number | null;
  };
  /** What follows from all this, for a person. */
  sentences: string[];
}

/** Share of a line's nominal rate that objects get, after TCP, TLS, HTTP and retries. */
const GOODPUT = 0.9;
/** Rows file, plan and run.json. */
const INPUT_OBJECTS = 3;
/** Prefix lanes that a start LISTs side by side, and keys of a LIST answer. */
const LANES = 16;
const LIST_KEYS = 1_000;
const TB = 1e12;

/** What the plan costs and what bounds it. Pure arithmetic: no GPU is rented to learn this. */
export function estimateRun(totals: PlanTotals, resources: Resources): Estimate {
  const { bytes, tokens, batches: objects } = totals;
  const { gpus, uplinkBytesPerS, gpuTokensPerS, spoolBytes, currency } = resources;
  const goodputBytesPerS = map(uplinkBytesPerS, (rate) => rate * GOODPUT);
  const gpuBytesPerS = map(gpuTokensPerS, (rate) => (rate * bytes) / tokens);
  const computeHours = map(gpuTokensPerS, (rate) => tokens / (rate * gpus) / 3600);
  const uploadHours = map(goodputBytesPerS, (rate) => bytes / rate / 3600);
  const hours = computeHours === null || uploadHours === null ? null : Math.max(computeHours, uploadHours);
  const estimate: Estimate = {
    computeHours,
    uploadHours,
    hours,
    limit: hours === null ? "unknown" : hours === computeHours ? "compute" : "uplink",
    gpusFed: map2(goodputBytesPerS, gpuBytesPerS, (uplink, gpu) => uplink / gpu),
    uplinkNeededBytesPerS: map(gpuBytesPerS, (gpu) => (gpu * gpus) / GOODPUT),
    spoolLastsS: map2(spoolBytes, gpuBytesPerS, (spool, gpu) => spool / (gpu * gpus)),
    spoolBytesMin: totals.largestPackBytes * (2 * gpus + 1),
    objects,
    requests: {
      put: objects + INPUT_OBJECTS,
      head: objects + INPUT_OBJECTS,
      list: LANES * Math.max(1, Math.ceil(objects / LANES / LIST_KEYS)),
    },
    money: {
      currency,
      run: map2(hours, resources.pricePerHour, (h, price) => h * price),
      storagePerMonth: map(resources.storagePricePerTbMonth, (price) => (bytes / TB) * price),
      epoch: map(resources.egressPricePerTb, (price) => (bytes / TB) * price),
    },
    sentences: [],
  };
  estimate.sentences = [
    ...spoolSentences(totals, resources, estimate),
    ...limitSentences(resources, estimate),
    ...moneySentences(estimate),
  ];
  return estimate;
}

function spoolSentences(totals: PlanTotals, { spoolBytes, gpus }: Resources, estimate: Estimate): string[] {
  if (spoolBytes === null) return [];
  const sentences: string[] = [];
  if (spoolBytes < estimate.spoolBytesMin) {
    sentences.push(
      `A spool of ${formatBytes(spoolBytes)} will be refused: ${engines(gpus)} and packs of up to ` +
        `${formatBytes(totals.largestPackBytes)} need ${formatBytes(estimate.spoolBytesMin)} (two packs an engine and one).`,
    );
  } else if (totals.bytes > spoolBytes) {
    sentences.push(
      `The states (${terabytes(totals.bytes)}) do not fit the ${formatBytes(spoolBytes)} spool: ` +
        `it is filled and emptied ${times(totals.bytes / spoolBytes)} over, each pack leaving once the store has it.`,
    );
  } else {
    sentences.push(
      `The whole run fits the spool (${terabytes(totals.bytes)} of ${formatBytes(spoolBytes)}).`,
    );
  }
  if (estimate.spoolLastsS !== null) {
    sentences.push(`With the store away, the spool takes ${duration(estimate.spoolLastsS)} of compute.`);
  }
  return sentences;
}

function limitSentences({ gpus }: Resources, estimate: Estimate): string[] {
  const { limit, gpusFed, computeHours, uploadHours, uplinkNeededBytesPerS } = estimate;
  if (limit === "unknown" || gpusFed === null || computeHours === null || uploadHours === null) {
    if (uplinkNeededBytesPerS === null) return [];
    return [`An uplink of ${bitRate(uplinkNeededBytesPerS)} would keep ${gpuCount(gpus)} busy.`];
  }
  const fed = gpusFed < 10 ? gpusFed.toFixed(1) : String(Math.round(gpusFed));
  if (limit === "compute") {
    return [
      `The GPUs are the limit (${duration(3600 * computeHours)}): the uplink could feed ${fed} such GPUs, you have ${gpus}.`,
    ];
  }
  const enough = Math.max(1, Math.ceil(gpusFed));
  const fewer = enough < gpus ? ` ${gpuCount(enough)} would finish as soon;` : "";
  return [
    `The uplink is the limit: it feeds ${fed} of your ${gpuCount(gpus)} (${duration(3600 * uploadHours)} of upload for ` +
      `${duration(3600 * computeHours)} of compute);${fewer} ${bitRate(uplinkNeededBytesPerS ?? 0)} would keep all busy.`,
  ];
}

function moneySentences({ money: { run, epoch } }: Estimate): string[] {
  if (run === null || epoch === null || epoch <= run) return [];
  return ["Reading the states back once costs more than computing them: train in the bucket's own region."];
}

/** 15,678,000,000,000 as "15.7 TB": decimal, as stores bill. */
export function terabytes(bytes: number): string {
  for (const [unit, size] of [
    ["TB", 1e12],
    ["GB", 1e9],
    ["MB", 1e6],
  ] as const) {
    if (bytes >= size) return `${trim(bytes / size)} ${unit}`;
  }
  return `${trim(bytes / 1e3)} kB`;
}

/** Seconds as "39 h", "4.3 h", "12 min" or "8 s"; days from two on. */
export function duration(seconds: number): string {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 5_700) return `${Math.round(seconds / 60)} min`;
  if (seconds < 2 * 86_400) return `${trim(seconds / 3_600)} h`;
  return `${trim(seconds / 86_400)} days`;
}

/** 1,411.02 as "$1,411", 0.42 as "$0.42". */
export function amount(currency: string, value: number): string {
  const digits = value < 100 ? 2 : 0;
  return `${currency}${value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

function bitRate(bytesPerS: number): string {
  const bits = 8 * bytesPerS;
  return bits >= 1e9 ? `${trim(bits / 1e9)} Gb/s` : `${trim(bits / 1e6)} Mb/s`;
}

function gpuCount(gpus: number): string {
  return gpus === 1 ? "1 GPU" : `${gpus} GPUs`;
}

function engines(count: number): string {
  return count === 1 ? "1 engine" : `${count} engines`;
}

function times(n: number): string {
  return n < 10 ? `${n.toFixed(1)} times` : `${Math.round(n).toLocaleString("en-US")} times`;
}

function trim(value: number): string {
  return value < 100
    ? String(Number(value.toPrecision(value < 10 ? 2 : 3)))
    : Math.round(value).toLocaleString("en-US");
}

function map(value: number | null, f: (value: number) => number): number | null {
  return value === null ? null : f(value);
}

function map2(a: number | null, b: number | null, f: (a: number, b: number) => number): number | null {
  return a === null || b === null ? null : f(a, b);
}
