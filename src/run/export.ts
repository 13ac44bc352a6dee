import { closeSync, mkdirSync, openSync, renameSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import { writeAllSync } from "../base/publish.ts";
import { buildHeader } from "../base/safetensors.ts";
import { trainerUse } from "../model/trainers.ts";
import { packLayout, type SampleLayout } from "../pack/layout.ts";
import { checkPackHeader, checkSampleCrc, decodeSample, readPackHeader } from "../pack/reader.ts";
import { batchCount, batchOf } from "../plan/plan.ts";
import { packKey } from "../store/keys.ts";
import type { Store } from "../store/store.ts";
import type { StoredRun } from "./stored-run.ts";

export interface ExportResult {
  /** Written now, found already there with their exact size, and left out because no engine could do them. */
  written: number;
  kept: number;
  skipped: number;
  /** Rows whose pack is not in the store yet. */
  missing: number;
  bytes: number;
}

/**
 * Writes a run as speculators reads offline states: `directory`/hs_<row>.safetensors with `hidden_states`
 * BF16 [tokens, taps, hidden] (its last slot is the last block's output, before the final norm) and `token_ids` I64.
 * Each pack is read once and every CRC in it checked. A file appears whole or not at all, and one that is there
 * with its exact size is not written again: after an interruption the same call goes on.
 * Throws (usage) where the last block was not tapped, (integrity) where a pack is not what was stored.
 */
export async function exportSpeculators(
  store: Store,
  run: StoredRun,
  directory: string,
  options: { signal?: AbortSignal; onBatch?: (done: number, batches: number) => void } = {},
): Promise<ExportResult> {
  const { blocks, last_state: lastState } = run.record.numbering;
  // Both of its trainers read the same files.
  const { reason } = trainerUse("speculators-dflash", { blocks, lastState });
  if (reason !== null) throw unusable(store.address, `speculators cannot use it: ${reason}`, blocks);
  mkdirSync(directory, { recursive: true });
  const result: ExportResult = { written: 0, kept: 0, skipped: 0, missing: 0, bytes: 0 };
  const batches = batchCount(run.plan);
  for (let batch = 0; batch < batches; batch += 1) {
    options.signal?.throwIfAborted();
    await exportBatch(store, run, { batch, directory, result, signal: options.signal });
    options.onBatch?.(batch + 1, batches);
  }
  return result;
}

async function exportBatch(
  store: Store,
  run: StoredRun,
  options: { batch: number; directory: string; result: ExportResult; signal: AbortSignal | undefined },
): Promise<void> {
  const { batch, directory, result, signal } = options;
  const { shape } = run.plan.options;
  const layout = packLayout(batchOf(run.plan, batch), shape);
  const wanted = layout.samples.map((sample, place) => {
    const path = join(directory, `hs_${sample.row}.safetensors`);
    const header = fileHeader(sample, shape);
    return { sample, place, path, header, bytes: header.length + sample.statesBytes + 8 * sample.tokens };
  });
  const open = wanted.filter(({ path, bytes }) => sizeOf(path) !== bytes);
  result.kept += wanted.length - open.length;
  if (open.length === 0) return;
  const key = packKey(batch);
  const subject = `${store.address}/${key}`;
  // One request for all of it, unless some of its files stand already.
  const endByte = open.length === wanted.length ? layout.bytes : layout.headerBytes;
  const first = await store.get(key, { startByte: 0, endByte }, signal);
  if (!first) {
    result.missing += open.length;
    return;
  }
  const header = readPackHeader(first.subarray(0, layout.headerBytes), subject, layout.bytes);
  if (checkPackHeader(header, layout, run.record.run_id).kind !== "same") throw otherPack(subject);
  for (const { sample, place, path, header: head, bytes } of open) {
    const { startByte, endByte: sampleEnd } = sample;
    const raw =
      sampleEnd <= first.length ? first.subarray(startByte, sampleEnd) : await store.get(key, sample, signal);
    if (!raw) throw otherPack(subject);
    const entry = header.samples[place]!;
    checkSampleCrc(raw, entry, subject);
    const decoded = decodeSample(raw, sample, subject);
    if (entry.skipped !== null || decoded.kind === "skipped") {
      result.skipped += 1;
      continue;
    }
    const ids = raw.subarray(0, 8 * sample.tokens);
    writeWhole(path, [head, ids, raw.subarray(raw.length - sample.statesBytes)]);
    result.written += 1;
    result.bytes += bytes;
  }
}

function fileHeader({ tokens }: SampleLayout, { taps, hidden }: { taps: number; hidden: number }): Buffer {
  return buildHeader(
    [
      { name: "token_ids", dtype: "I64", shape: [tokens] },
      { name: "hidden_states", dtype: "BF16", shape: [tokens, taps, hidden] },
    ],
    {},
  );
}

/** Renamed into place, so that a trainer never meets half a file. Not fsynced: it can be made again. */
function writeWhole(path: string, chunks: Uint8Array[]): void {
  const temporary = `${path}.tmp`;
  try {
    const fd = openSync(temporary, "w");
    try {
      for (const chunk of chunks) writeAllSync(fd, chunk, null);
    } finally {
      closeSync(fd);
    }
    renameSync(temporary, path);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  }
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? -1;
}

function unusable(address: string, message: string, blocks: readonly number[]): RunError {
  return new RunError({
    op: "export run",
    subject: address,
    message: `${message} (tapped: ${blocks.join(",")})`,
    safe: "nothing was written",
    hint: "a run with --for speculators-dflash or speculators-eagle3 can be exported; forebay taps --model DIR --for NAME shows its taps",
    exit: EXIT.usage,
  });
}

function otherPack(subject: string): RunError {
  return new RunError({
    op: "export run",
    subject,
    message: "the pack is of another run or batch, or is gone",
    safe: "what is written already stays, and is whole",
    hint: "forebay verify ADDRESS --deep names every such pack",
    exit: EXIT.integrity,
  });
}
