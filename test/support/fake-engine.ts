import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { onTestFinished } from "vitest";
import type { EngineCommand } from "../../src/engine/child.ts";
import type { ExtractRequest, LoadRequest } from "../../src/engine/protocol.ts";

const SCRIPT = fileURLToPath(new URL("./children/engine.mjs", import.meta.url));

/** The command of the child that speaks the protocol well, or badly by `--mode` (see the script). */
export function fakeEngine(...args: string[]): EngineCommand {
  return { name: "fake", file: process.execPath, args: [SCRIPT, ...args], env: {} };
}

export const FAKE_TAPS = [1, 3];
export const FAKE_HIDDEN = 8;
/** bf16 [taps, hidden] */
export const FAKE_TOKEN_BYTES = FAKE_TAPS.length * FAKE_HIDDEN * 2;

export const fakeLoad: Omit<LoadRequest, "type" | "id"> = {
  model: "/models/fake",
  dtype: "auto",
  device: null,
  taps: FAKE_TAPS,
  options: {},
};

/** A directory that is gone after the test. */
export function temporaryDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "forebay-engine-"));
  onTestFinished(() => rmSync(directory, { recursive: true, force: true }));
  return directory;
}

/** A request for `rows`, of 3 + row % 5 tokens each, and its part file at full size. */
export function fakeRequest(
  directory: string,
  rows: readonly number[],
  attempt = 1,
): Omit<ExtractRequest, "type" | "id"> {
  let offset = 64;
  const samples = rows.map((row) => {
    const ids = Array.from({ length: 3 + (row % 5) }, (_, i) => row * 10 + i + 1);
    const sample = { row, ids, offset };
    offset += ids.length * FAKE_TOKEN_BYTES;
    return sample;
  });
  const file = join(directory, `rows-${rows.join("-").slice(0, 40)}.${attempt}.part`);
  writeFileSync(file, Buffer.alloc(offset));
  return { attempt, file, samples };
}

/** Whether a process of that id is there. */
export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}
