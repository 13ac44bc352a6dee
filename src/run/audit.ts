import { eachOf } from "../base/each.ts";
import { describeError } from "../base/errors.ts";
import { PackChecker } from "../pack/check.ts";
import { packLayout } from "../pack/layout.ts";
import { checkPackHeader, type PackHeader, readPackHeader } from "../pack/reader.ts";
import { batchBytes, batchCount, batchOf } from "../plan/plan.ts";
import { packKey } from "../store/keys.ts";
import type { Store } from "../store/store.ts";
import { listHoldings } from "./remaining.ts";
import type { StoredRun } from "./stored-run.ts";

/** Of a pack, in memory for each request under way: a pack may have gigabytes. */
const SLICE_BYTES = 16 * 2 ** 20;

export interface AuditOptions {
  /** Share of the packs whose bytes are read again: 0 headers of packs with skips only, 1 all (`--deep`). */
  share: number;
  /** Chooses the packs of a share below 1. */
  random: () => number;
  /** Requests at a time. */
  parallel: number;
  /** Called once, before anything large is read. */
  onTraffic?: (bytes: number, packs: number) => void;
  onProgress?: (packsRead: number, packsTotal: number) => void;
  signal?: AbortSignal;
}

interface AuditFault {
  key: string;
  message: string;
}

/** planned = committed + skipped + missing + corrupt, each row once. */
export interface AuditReport {
  ok: boolean;
  rows: {
    planned: number;
    committed: number;
    skipped: number;
    missing: number;
    duplicate: number;
    corrupt: number;
  };
  packs: number;
  bytes: number;
  aliens: number;
  faults: AuditFault[];
  alienKeys: string[];
  /** What was read again. */
  read: { packs: number; bytes: number };
}

/** Holds a run against its plan from the store alone: every row exactly once, every size, and the bytes of a share. */
export async function auditRun(store: Store, run: StoredRun, options: AuditOptions): Promise<AuditReport> {
  const { plan } = run;
  const batches = batchCount(plan);
  const holdings = await listHoldings(store, {
    batches,
    plannedBytes: (batch) => batchBytes(plan, batch),
    prefixes: [""],
    signal: options.signal,
  });
  const report: AuditReport = {
    ok: false,
    rows: {
      planned: plan.rows.length + plan.skippedRows.length,
      committed: 0,
      skipped: plan.skippedRows.length,
      missing: 0,
      duplicate: 0,
      corrupt: 0,
    },
    packs: holdings.committedCount,
    bytes: holdings.committedBytes,
    aliens: holdings.aliens.length,
    faults: holdings.torn.map(({ key, bytes, plannedBytes }) => ({
      key,
      message: `expected ${plannedBytes} bytes, the object has ${bytes}`,
    })),
    alienKeys: holdings.aliens.slice(0, 100),
    read: { packs: 0, bytes: 0 },
  };
  const torn = new Set(holdings.torn.map(({ key }) => key));
  const toRead = chooseToRead(holdings.committed, new Set(holdings.withSkips), options);
  const readBytes = [...toRead].reduce(
    (sum, [batch, whole]) => sum + (whole ? batchBytes(plan, batch) : 0),
    0,
  );
  options.onTraffic?.(readBytes, toRead.size);

  const seen = new Map<number, number>();
  const readOne = async ([batch, whole]: [number, boolean]) => {
    const found = await readPack(store, run, batch, whole, options.signal);
    report.read.packs += 1;
    report.read.bytes += found.bytesRead;
    if (found.fault) {
      report.faults.push({ key: packKey(batch), message: found.fault });
      report.rows.corrupt += rowsOf(batch);
    } else {
      report.rows.skipped += found.skipped;
      report.rows.committed += rowsOf(batch) - found.skipped;
    }
    for (const row of found.rows) seen.set(row, (seen.get(row) ?? 0) + 1);
    options.onProgress?.(report.read.packs, toRead.size);
  };
  const rowsOf = (batch: number) => plan.batchStart[batch + 1]! - plan.batchStart[batch]!;
  await eachOf(toRead, options.parallel, readOne);

  for (let batch = 0; batch < batches; batch += 1) {
    if (toRead.has(batch)) continue;
    if (holdings.committed[batch]) report.rows.committed += rowsOf(batch);
    else if (torn.has(packKey(batch))) report.rows.corrupt += rowsOf(batch);
    else report.rows.missing += rowsOf(batch);
  }
  for (const times of seen.values()) report.rows.duplicate += times - 1;
  const { missing, duplicate, corrupt } = report.rows;
  report.ok = missing === 0 && duplicate === 0 && corrupt === 0 && report.faults.length === 0;
  return report;
}

/** Batch -> whether all its bytes are read; packs with a skips file are asked for their headers in any case. */
function chooseToRead(
  committed: Uint8Array,
  withSkips: ReadonlySet<number>,
  { share, random }: AuditOptions,
): Map<number, boolean> {
  const toRead = new Map<number, boolean>();
  for (let batch = 0; batch < committed.length; batch += 1) {
    if (!committed[batch]) continue;
    if (share >= 1 || (share > 0 && random() < share)) toRead.set(batch, true);
    else if (withSkips.has(batch)) toRead.set(batch, false);
  }
  // A share of a small run is at least one pack.
  if (share > 0 && toRead.size === 0) {
    const first = committed.indexOf(1);
    if (first >= 0) toRead.set(first, true);
  }
  return toRead;
}

interface PackFinding {
  fault: string | null;
  rows: number[];
  skipped: number;
  bytesRead: number;
}

async function readPack(
  store: Store,
  run: StoredRun,
  batch: number,
  whole: boolean,
  signal: AbortSignal | undefined,
): Promise<PackFinding> {
  const layout = packLayout(batchOf(run.plan, batch), run.plan.options.shape);
  const finding: PackFinding = { fault: null, rows: [], skipped: 0, bytesRead: 0 };
  const key = packKey(batch);
  const read = async (startByte: number, endByte: number) => {
    const bytes = await store.get(key, { startByte, endByte }, signal);
    finding.bytesRead += bytes?.length ?? 0;
    return bytes;
  };
  const headerBytes = await read(0, layout.headerBytes);
  if (!headerBytes) return { ...finding, fault: "LIST shows it, GET does not find it" };
  let header: PackHeader;
  try {
    header = readPackHeader(headerBytes, key, layout.bytes);
  } catch (error) {
    return { ...finding, fault: describeError(error) };
  }
  finding.rows = header.samples.map(({ row }) => row);
  finding.skipped = header.samples.filter(({ skipped }) => skipped !== null).length;
  const verdict = checkPackHeader(header, layout, run.record.run_id);
  if (verdict.kind === "other-identity") return { ...finding, fault: "the pack is of another run" };
  if (verdict.kind === "alien") return { ...finding, fault: verdict.message };
  if (!whole) return finding;
  const checker = new PackChecker(layout.bytes, { identity: run.record.run_id, layout }, key);
  checker.add(headerBytes);
  for (let at = layout.headerBytes; at < layout.bytes; at += SLICE_BYTES) {
    const slice = await read(at, Math.min(layout.bytes, at + SLICE_BYTES));
    if (!slice) return { ...finding, fault: "it was deleted while it was read" };
    try {
      checker.add(slice);
    } catch (error) {
      return { ...finding, fault: describeError(error) };
    }
  }
  checker.finish();
  return finding;
}
