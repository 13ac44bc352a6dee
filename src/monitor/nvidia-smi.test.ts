import { chmodSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { silentLog } from "../base/log.ts";
import { type GpuWatch, parseGpuLine, watchGpus } from "./nvidia-smi.ts";

const MIB = 2 ** 20;

// Values as cards of several generations have printed them; the columns are those that we ask for.
test("a healthy card", () => {
  expect(
    parseGpuLine("0, GPU-22b2c6ac-2d49-4863-197c-9c469071178a, 86, 7112, 7979, 176.98, 45, NVIDIA L4"),
  ).toEqual({
    uuid: "GPU-22b2c6ac-2d49-4863-197c-9c469071178a",
    gpu: {
      index: 0,
      name: "NVIDIA L4",
      util: 86,
      mem_used: 7_112 * MIB,
      mem_total: 7_979 * MIB,
      power: 176.98,
      temp: 45,
    },
  });
});

test.each([
  [
    "a GTX 770 with an old driver",
    "1, GPU-45535fc5-0734-b693-29f7-43fe940f6e67, [Not Supported], 0, 2004, [Not Supported], 52, GeForce GTX 770",
  ],
  [
    "a newer driver for the same",
    "1, GPU-45535fc5-0734-b693-29f7-43fe940f6e67, [N/A], 0, 2004, [N/A], 52, GeForce GTX 770",
  ],
  [
    "older still, without brackets",
    "1, GPU-45535fc5-0734-b693-29f7-43fe940f6e67, N/A, 0, 2004, N/A, 52, GeForce GTX 770",
  ],
  [
    "a card in trouble",
    "1, GPU-45535fc5-0734-b693-29f7-43fe940f6e67, ERR!, 0, 2004, [Unknown Error], 52, GeForce GTX 770",
  ],
])("%s: what is not a number is unknown, the rest stays", (_, line) => {
  const reading = parseGpuLine(line);
  expect(reading?.gpu).toEqual({
    index: 1,
    name: "GeForce GTX 770",
    util: null,
    mem_used: 0,
    mem_total: 2_004 * MIB,
    power: null,
    temp: 52,
  });
});

test("a card that shares the machine's memory (GB10) reports none of its own", () => {
  expect(
    parseGpuLine("0, GPU-9d1e0f3a-6f57-1c0b-b2a1-8a4e5d6c7b80, 3, [N/A], [N/A], 11.43, 41, NVIDIA GB10")?.gpu,
  ).toMatchObject({
    mem_used: null,
    mem_total: null,
    power: 11.43,
  });
});

test("a card that must be reset keeps its place with nothing known", () => {
  const reset = "[GPU requires reset]";
  expect(
    parseGpuLine(`3, GPU-8fe3a97d-51f6-a669-0d80-b4530b81b816, ${Array(6).fill(reset).join(", ")}`)?.gpu,
  ).toEqual({
    index: 3,
    name: null,
    util: null,
    mem_used: null,
    mem_total: null,
    power: null,
    temp: null,
  });
});

test.each([
  "",
  "No devices were found",
  "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.",
  "Unable to determine the device handle for GPU 0000:02:00.0: Unknown Error",
  "Failed to initialize NVML: Driver/library version mismatch",
  "[N/A], GPU-1, 1, 2, 3, 4, 5, NVIDIA L4",
  "0, GPU-22b2c6ac, 86, 7112",
])("%j is no reading", (line) => {
  expect(parseGpuLine(line)).toBeNull();
});

test("a decimal comma, a minus or a unit is not taken for a number", () => {
  expect(parseGpuLine("0, x, 86 %, -1, 0x10, 1e3, NaN, NVIDIA L4")?.gpu).toEqual({
    index: 0,
    name: "NVIDIA L4",
    util: null,
    mem_used: null,
    mem_total: null,
    power: null,
    temp: null,
  });
});

let directory: string;
let watch: GpuWatch | undefined;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-gpu-"));
});
afterEach(() => {
  watch?.close();
  rmSync(directory, { recursive: true });
});

/** A real child that prints what nvidia-smi would, and then does `after`. */
function fakeCommand(lines: string[], after = "sleep 60"): string {
  const path = join(directory, "nvidia-smi");
  writeFileSync(path, `#!/bin/sh\n${lines.map((line) => `echo '${line}'\n`).join("")}exec ${after}\n`);
  chmodSync(path, 0o755);
  return path;
}

function start(command: string, nowMs: () => number = () => 0): GpuWatch {
  watch = watchGpus({ command, env: { PATH: process.env.PATH }, log: silentLog, nowMs });
  return watch;
}

test("the newest line of each card counts, in the order of the cards", async () => {
  const gpus = start(
    fakeCommand([
      "1, GPU-bb, 50, 1, 2, 3, 4, NVIDIA L4",
      "0, GPU-aa, 10, 1, 2, 3, 4, NVIDIA L4",
      "noise",
      "1, GPU-bb, 70, 1, 2, 3, 4, NVIDIA L4",
    ]),
  );
  await vi.waitFor(() => expect(gpus.readings()[1]?.gpu.util).toBe(70), 5_000);
  expect(gpus.readings().map(({ uuid, gpu }) => [uuid, gpu.index, gpu.util])).toEqual([
    ["GPU-aa", 0, 10],
    ["GPU-bb", 1, 70],
  ]);
});

test("what a hung driver said long ago is unknown now", async () => {
  let nowMs = 0;
  const gpus = start(fakeCommand(["0, GPU-aa, 10, 1, 2, 3, 4, NVIDIA L4"]), () => nowMs);
  await vi.waitFor(() => expect(gpus.readings()).toHaveLength(1), 5_000);
  nowMs = 20_000;
  expect(gpus.readings()[0]?.gpu).toMatchObject({ index: 0, util: null, power: null });
});

test("a machine without nvidia-smi has no readings and no error", async () => {
  const gpus = start(join(directory, "not-there"));
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(gpus.readings()).toEqual([]);
});

test("a command that fails leaves a word in the log and no readings", async () => {
  const said: unknown[] = [];
  watch = watchGpus({
    command: fakeCommand(["Failed to initialize NVML: Driver/library version mismatch"], "false"),
    env: { PATH: process.env.PATH },
    log: { ...silentLog, info: (event, fields) => said.push([event, fields]) },
    nowMs: () => 0,
  });
  await vi.waitFor(() => expect(said).toHaveLength(1), 5_000);
  expect(said[0]).toMatchObject(["gpu.watch_ended", { said: expect.stringContaining("version mismatch") }]);
  expect(watch.readings()).toEqual([]);
});
