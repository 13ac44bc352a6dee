import { peakFlops } from "../monitor/card-peak.ts";
import type { GpuReading } from "../monitor/nvidia-smi.ts";
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
