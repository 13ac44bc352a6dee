import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { resolveSettings, type SettingTexts } from "../config/resolve.ts";
import { LEAST } from "../engine/transformers.ts";
import { planEngines } from "./engine-commands.ts";

const UUIDS = [0, 1, 2].map((index) => `GPU-${index}2b6ac00-2d49-4863-197c-9c469071178a`);
const CARDS = UUIDS.map((uuid, index) => `${index}, ${uuid}, 0, 4, 81559, 70.1, 30, NVIDIA H100 80GB HBM3`);

/** An environment whose programs are an nvidia-smi that says `lines`, and a Python with all that the engine needs. */
function machine(lines: readonly string[]): Record<string, string> {
  const directory = mkdtempSync(join(tmpdir(), "forebay-gpus-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  const versions = Object.entries(LEAST).map(([name, least]) => [name, least.join(".")]);
  const found = JSON.stringify({ python: "3.12", ...Object.fromEntries(versions) });
  const programs = {
    "nvidia-smi": lines.map((line) => `echo '${line}'`).join("\n"),
    python3: `echo '${found}'`,
  };
  for (const [name, script] of Object.entries(programs)) {
    writeFileSync(join(directory, name), `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }
  return { PATH: `${directory}${delimiter}/usr/bin${delimiter}/bin` };
}

/** CUDA_VISIBLE_DEVICES of each engine that would be started. */
function devices(flags: SettingTexts, env: Record<string, string>): (string | undefined)[] {
  const { values } = resolveSettings({ verb: "run", flags, env: {}, file: null, directory: "/" });
  return planEngines(values, env).commands.map((command) => command.env.CUDA_VISIBLE_DEVICES);
}

test.each<[string, SettingTexts]>([
  ["transformers", { engine: "transformers" }],
  ["vllm --serve", { engine: "vllm", serve: "true" }],
])("%s: without a word about it, an engine for each GPU of the machine", (_engine, flags) => {
  expect(devices(flags, machine(CARDS))).toEqual(UUIDS);
  expect(devices(flags, machine(["No devices were found"]))).toEqual([undefined]);
});

test.each<[string, string[]]>([
  ["1,2", ["1", "2"]],
  [` ${UUIDS[2]!.slice(0, 8)}, 0`, [UUIDS[2]!.slice(0, 8), "0"]],
  // As CUDA does: what follows one that is not there is not seen.
  ["1,7,0", ["1"]],
  ["MIG-4f3a,MIG-5b", ["MIG-4f3a", "MIG-5b"]],
])("of CUDA_VISIBLE_DEVICES=%s those that there are", (named, seen) => {
  expect(devices({ engine: "transformers" }, { ...machine(CARDS), CUDA_VISIBLE_DEVICES: named })).toEqual(
    seen,
  );
});

test("where no card is shown, CUDA_VISIBLE_DEVICES is believed; where it hides all, there is one engine", () => {
  const flags = { engine: "transformers" };
  expect(devices(flags, { ...machine([]), CUDA_VISIBLE_DEVICES: "0,1" })).toEqual(["0", "1"]);
  for (const none of ["", "-1"]) {
    expect(devices(flags, { ...machine(CARDS), CUDA_VISIBLE_DEVICES: none })).toEqual([none]);
  }
});

test.each<[string, SettingTexts, (string | undefined)[]]>([
  ["--devices", { engine: "transformers", devices: "0,2" }, ["0", "2"]],
  ["--engines", { engine: "transformers", engines: "2" }, [undefined, undefined]],
  ["--engines and --devices", { engine: "transformers", engines: "1", devices: "0,2" }, ["0,2"]],
  ["--engine-env", { engine: "transformers", "engine-env": ["CUDA_VISIBLE_DEVICES=1,2"] }, ["1,2"]],
  ["a server that spreads", { engine: "vllm", serve: "true", "vllm-arg": ["-tp=2"] }, [undefined]],
  ["a server that runs", { engine: "vllm", vllm: ["http://127.0.0.1:8000"] }, [undefined]],
  ["the onnx engine", { engine: "onnx" }, [undefined]],
])("a choice is left as it is: %s", (_choice, flags, chosen) => {
  expect(devices(flags, machine(CARDS))).toEqual(chosen);
});

test.each<[string, SettingTexts]>([
  ["transformers", { engine: "transformers" }],
  ["vllm --serve", { engine: "vllm", serve: "true" }],
])("%s: a device that is not among the cards is refused, with those that are", (_engine, flags) => {
  for (const named of ["7", "0,7", "GPU-9"]) {
    expect(() => devices({ ...flags, devices: named }, machine(CARDS))).toThrow(
      expect.objectContaining({ exit: 2, message: expect.stringMatching(/(7|GPU-9).* shows 0, 1, 2$/) }),
    );
  }
  for (const named of [UUIDS[1]!.slice(0, 8), "MIG-4f3a"]) {
    expect(devices({ ...flags, devices: named }, machine(CARDS))).toEqual([named]);
  }
});

test("where nvidia-smi shows no card, as on machines of other makers, the engine itself finds out", () => {
  const flags = { engine: "transformers", devices: "7" };
  expect(devices(flags, machine(["No devices were found"]))).toEqual(["7"]);
  expect(devices(flags, machine([]))).toEqual(["7"]);
});
