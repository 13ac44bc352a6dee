import { expect, test } from "vitest";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import type { GpuReading } from "../monitor/nvidia-smi.ts";
import type { EngineStatus, StatusDocument } from "../run/status.ts";
import { withGpus } from "./gpus.ts";

const H100 = "NVIDIA H100 80GB HBM3";

function card(index: number, name: string | null): GpuReading {
  const gpu = { index, name, util: 90, mem_used: 1, mem_total: 2, power: 3, temp: 4 };
  return { uuid: `GPU-${index}a2b-33`, gpu };
}

/** The first engine of a run that needs 50 GFLOPs a token, changed, beside these cards. */
function engineWith(
  change: Partial<EngineStatus>,
  readings: GpuReading[],
  flopsPerToken: number | null = 50e9,
): EngineStatus {
  const edit = (document: StatusDocument): StatusDocument => ({
    ...document,
    extraction: { ...document.extraction, flops_per_token: flopsPerToken },
    engines: document.engines.map((engine) => ({ ...engine, gpu: null, flops_share: null, ...change })),
  });
  return withGpus(scriptedRun({ nowMs: () => 0, engines: 1, edit }).snapshot(), readings).engines[0]!;
}

test("8,000 tokens/s of 50 GFLOPs each are 400 of an H100's 989.4 TFLOP/s", () => {
  const engine = engineWith({ devices: ["GPU-1a2b-33"], tokens_per_s: 8_000 }, [
    card(0, H100),
    card(1, H100),
  ]);
  expect(engine.flops_share).toBeCloseTo(400 / 989.4, 12);
  expect(engine.gpu?.index).toBe(1);
});

test("a model over two cards is held against both", () => {
  const cards = [card(0, H100), card(1, H100)];
  const engine = engineWith({ devices: ["GPU-0a2b-33", "GPU-1a2b-33"], tokens_per_s: 8_000 }, cards);
  expect(engine.flops_share).toBeCloseTo(200 / 989.4, 12);
});

test("cards are found by number, and by the beginning of a UUID, as CUDA takes them", () => {
  for (const name of ["1", "GPU-1a"]) {
    expect(engineWith({ devices: [name] }, [card(0, H100), card(1, H100)]).gpu?.index).toBe(1);
  }
});

test.each<[string, Partial<EngineStatus>, GpuReading[], number | null]>([
  ["an engine on a CPU", { devices: [] }, [card(0, H100)], 50e9],
  ["a card that nvidia-smi does not show", { devices: ["GPU-9"] }, [card(0, H100)], 50e9],
  ["one of two cards that it does not show", { devices: ["0", "1"] }, [card(0, H100)], 50e9],
  ["a card whose peak is not known", { devices: ["0"] }, [card(0, "NVIDIA X1")], 50e9],
  ["a card without a name", { devices: ["0"] }, [card(0, null)], 50e9],
  ["a model whose FLOPs are not known", { devices: ["0"] }, [card(0, H100)], null],
  ["an engine that has done nothing yet", { devices: ["0"], tokens_per_s: null }, [card(0, H100)], 50e9],
])("%s has no share, and not 0", (_what, change, readings, flopsPerToken) => {
  expect(engineWith({ tokens_per_s: 8_000, ...change }, readings, flopsPerToken).flops_share).toBeNull();
});
