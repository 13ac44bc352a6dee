import { existsSync } from "node:fs";
import { dirname } from "node:path";
import { sleep } from "../../base/backoff.ts";
import { fileState } from "./connector-file.ts";
import { fileTrouble, serverGone } from "./failure.ts";
import type { Locks } from "./locks.ts";

export interface WaitOptions {
  /** How long the file may take after the server's answer. */
  limitMs: number;
  nowMs: () => number;
  /** Whether the server is well; asked each second as long as there is no whole file. */
  isWell: () => Promise<boolean>;
  /** Null: the size alone tells whether a file is whole. */
  locks: Locks | null;
}

const POLL_MS_MAX = 50;
const HEALTH_EVERY_MS = 1_000;

/**
 * Resolves once the connector's file is whole and nobody holds its lock: the server answers before the file is
 * there. The lock's FILE stays for ever, so that it exists means nothing; and a free lock does not make a good file.
 * Rejects with a VllmError where the file does not come, stays short or stays locked, and where the server died.
 */
export async function waitForFile(path: string, options: WaitOptions): Promise<void> {
  const { nowMs, limitMs, locks } = options;
  const lock = `${path}.lock`;
  const endMs = nowMs() + limitMs;
  let nextHealthMs = nowMs() + HEALTH_EVERY_MS;
  for (let pollMs = 1; ; pollMs = Math.min(POLL_MS_MAX, 2 * pollMs)) {
    let state = fileState(path);
    let isHeld = false;
    if (state.kind === "whole") {
      isHeld = locks !== null && existsSync(lock) && (await locks.isHeld(lock));
      state = fileState(path);
      if (state.kind === "whole" && !isHeld) return;
    }
    if (nowMs() >= nextHealthMs) {
      if (!(await options.isWell())) {
        throw serverGone(`vLLM answered, but died before it wrote ${path}: see the server's log`);
      }
      nextHealthMs = nowMs() + HEALTH_EVERY_MS;
    }
    if (nowMs() >= endMs) {
      const what = isHeld ? `${lock} stayed locked: does the server hang? It was so` : describe(path, state);
      throw fileTrouble(`${what} after ${limitMs / 1000} s`);
    }
    await sleep(pollMs);
  }
}

function describe(path: string, state: ReturnType<typeof fileState>): string {
  if (state.kind === "garbled")
    return `${path} is not what the connector writes: ${state.reason}; it was still so`;
  if (state.kind === "short") {
    const expected = state.expectedBytes ?? "its header at least";
    return `${path} has ${state.bytes} bytes, expected ${expected}: is the connector's folder full? It was still short`;
  }
  const folder = dirname(path);
  return existsSync(folder)
    ? `vLLM answered, but ${path} was still not there`
    : `the server writes into ${folder}, which is not on this machine: run Forebay where that folder is, under the same path; still not there`;
}
