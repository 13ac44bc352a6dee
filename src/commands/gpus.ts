import { EXIT, RunError } from "../base/errors.ts";
import { peakFlops } from "../monitor/card-peak.ts";
import { type GpuReading, readGpus } from "../monitor/nvidia-smi.ts";
import type { EngineStatus, StatusDocument } from "../run/status.ts";

/** The same document, with each engine's cards beside it: their figures, and the share of their peak that it uses. */
export function withGpus(document: StatusDocument, readings: readonly GpuReading[]): StatusDocument {
  const { flops_per_token } = document.extraction;
  const engines = document.engines.map((engine) => {
    const cards = readings.filter((reading) => engine.devices.some((name) => isNamed(reading, name)));
    const gpu = cards[0]?.gpu ?? null;
    return { ...engine, gpu, flops_share: shareOfPeak(engine, cards, flops_per_token) };
  });
  return { ...document, engines };
}

/** The GPUs that a process of this environment sees, as CUDA_VISIBLE_DEVICES names them. Empty: none is known of. */
export function visibleGpus(env: NodeJS.ProcessEnv): string[] {
  const cards = readGpus(env);
  const named = env.CUDA_VISIBLE_DEVICES;
  if (named === undefined) return cards.map(({ uuid, gpu }) => uuid ?? String(gpu.index));
  const names = named.split(",").map((name) => name.trim());
  // CUDA looks no further than the first that is not there.
  const end = names.findIndex((name) => !isThere(name, cards));
  return end < 0 ? names : names.slice(0, end);
}

/**
 * Throws (usage) for one of `devices` that is not among the cards which nvidia-smi shows. Where it shows none, or is not
 * there, as on machines of other makers, the engine finds out.
 */
export function needGpus(devices: readonly string[], env: NodeJS.ProcessEnv): void {
  const cards = readGpus(env);
  const absent = devices.filter((name) => !isThere(name, cards));
  if (cards.length === 0 || absent.length === 0) return;
  const shown = cards.map(({ gpu }) => gpu.index).join(", ");
  throw new RunError({
    op: "read setting",
    subject: "--devices",
    message: `expected GPUs of this machine, found ${absent.join(", ")}; nvidia-smi shows ${shown}`,
    safe: "nothing was started",
    hint: "number them as nvidia-smi does, or leave --devices out to use all",
    exit: EXIT.usage,
  });
}

/** Where nvidia-smi shows no cards, as in some containers, the variable is believed. Parts of a card it does not list. */
function isThere(name: string, cards: readonly GpuReading[]): boolean {
  if (cards.length === 0 || name.startsWith("MIG-")) return /^(?:\d+$|GPU-|MIG-)/.test(name);
  return cards.some((reading) => isNamed(reading, name));
}

/** CUDA takes the beginning of a UUID for the whole, if it names one card only. */
function isNamed({ uuid, gpu }: GpuReading, name: string): boolean {
  return name === String(gpu.index) || (name.startsWith("GPU-") && uuid?.startsWith(name) === true);
}

/** Null unless every card of the engine is seen and its peak known. */
function shareOfPeak(
  { devices, tokens_per_s }: EngineStatus,
  cards: readonly GpuReading[],
  flopsPerToken: number | null,
): number | null {
  if (tokens_per_s === null || flopsPerToken === null) return null;
  if (cards.length === 0 || cards.length < devices.length) return null;
  const peaks = cards.map(({ gpu }) => (gpu.name === null ? null : peakFlops(gpu.name)));
  const peak = peaks.reduce((sum, one) => (sum === null || one === null ? null : sum + one), 0);
  return peak === null ? null : (tokens_per_s * flopsPerToken) / peak;
}
