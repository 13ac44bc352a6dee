import type { GpuWatch } from "../monitor/nvidia-smi.ts";
import type { StatusSource } from "../run/status.ts";

/** The same source, with each engine's card beside it: by the UUID that the engine names, or by its index. */
export function withGpus(source: StatusSource, watch: GpuWatch): StatusSource {
  return {
    counters: () => source.counters(),
    snapshot() {
      const document = source.snapshot();
      const readings = watch.readings();
      if (readings.length === 0) return document;
      const engines = document.engines.map((engine) => {
        const { device } = engine;
        const reading = readings.find(
          ({ uuid, gpu }) => device !== null && (uuid === device || String(gpu.index) === device),
        );
        return reading ? { ...engine, gpu: reading.gpu } : engine;
      });
      return { ...document, engines };
    },
  };
}
