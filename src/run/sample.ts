import { EXIT, RunError } from "../base/errors.ts";
import { packLayout, type SampleLayout } from "../pack/layout.ts";
import {
  checkPackHeader,
  checkSampleCrc,
  type DecodedSample,
  decodeSample,
  readPackHeader,
} from "../pack/reader.ts";
import { batchOf, findRow, type Plan } from "../plan/plan.ts";
import { packKey } from "../store/keys.ts";
import type { Store } from "../store/store.ts";
import type { StoredRun } from "./stored-run.ts";

export type ReadSample =
  | {
      kind: "sample";
      row: number;
      key: string;
      layout: SampleLayout;
      sample: Extract<DecodedSample, { kind: "sample" }>;
      checked: boolean;
    }
  | { kind: "skipped"; row: number; when: "plan" | "run"; reason: string };

/**
 * One sample by one range request; with `check`, its pack's header by a second one, and the sample's CRC held
 * against it. Throws exit 2 on a row that is not of the run, 75 on one not extracted yet, 9 on bytes that differ.
 */
export async function readSample(
  store: Store,
  run: StoredRun,
  row: number,
  options: { check: boolean; signal?: AbortSignal },
): Promise<ReadSample> {
  const found = findRow(run.plan, row);
  if (found.kind === "skipped") return { kind: "skipped", row, when: "plan", reason: found.reason };
  if (found.kind === "unknown") throw notOfRun(store, run.plan, row);
  const layout = packLayout(batchOf(run.plan, found.batch), run.plan.options.shape);
  const place = layout.samples.findIndex((sample) => sample.row === row);
  const sampleLayout = layout.samples[place]!;
  const key = packKey(found.batch);
  const subject = `${store.address}/${key}`;
  const bytes = await store.get(key, sampleLayout, options.signal);
  if (!bytes) throw notYet(store, row, found.batch);
  const decoded = decodeSample(bytes, sampleLayout, subject);
  if (options.check || decoded.kind === "skipped") {
    const headerBytes = await store.get(key, { startByte: 0, endByte: layout.headerBytes }, options.signal);
    if (!headerBytes) throw notYet(store, row, found.batch);
    const header = readPackHeader(headerBytes, subject, layout.bytes);
    if (checkPackHeader(header, layout, run.record.run_id).kind !== "same") throw otherPack(subject, row);
    const entry = header.samples[place]!;
    if (entry.skipped !== null) return { kind: "skipped", row, when: "run", reason: entry.skipped };
    checkSampleCrc(bytes, entry, subject);
  }
  if (decoded.kind === "skipped") throw otherPack(subject, row);
  return { kind: "sample", row, key, layout: sampleLayout, sample: decoded, checked: options.check };
}

function notOfRun(store: Store, plan: Plan, row: number): RunError {
  return new RunError({
    op: "read sample",
    subject: `${store.address} row ${row}`,
    message: `the run has no such row (it has ${plan.rows.length + plan.skippedRows.length} rows)`,
    hint: "rows are numbered as in the dataset, from 0",
    exit: EXIT.usage,
  });
}

function notYet(store: Store, row: number, batch: number): RunError {
  return new RunError({
    op: "read sample",
    subject: `${store.address} row ${row}`,
    message: `its pack (batch ${batch}) is not in the store yet`,
    hint: `forebay status ${store.address} shows how far the run is`,
    exit: EXIT.retryLater,
  });
}

function otherPack(subject: string, row: number): RunError {
  return new RunError({
    op: "read sample",
    subject,
    message: `the pack's header is of another run or does not hold row ${row} where the plan has it`,
    hint: "forebay verify ADDRESS --deep names every such pack",
    exit: EXIT.integrity,
  });
}
