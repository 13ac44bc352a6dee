import { readForwardCost } from "../model/forward-cost.ts";
import { batchBytes, batchCount, type Plan, planTotals, reasonOf } from "../plan/plan.ts";
import { assertBudget, Spool } from "../spool/spool.ts";
import { openStore } from "../store/open.ts";
import { patientStore } from "../store/patient-store.ts";
import { type RetryOptions, withRetries } from "../store/retry.ts";
import type { OpenedStore } from "../store/store.ts";
import { claimPart, isOfPart } from "./lease.ts";
import type { EngineSetup, ExtractOptions, ExtractTools } from "./options.ts";
import { type PreparedRun, prepareRun } from "./prepare.ts";
import { assertAttachments, assertRowsFit } from "./publish-inputs.ts";
import { engineChange, engineFactsOf, readRunRecord, runIdOf } from "./record.ts";
import { type Holdings, listHoldings } from "./remaining.ts";
import { readSkips } from "./skips.ts";
import { type PlanSkips, SKIPPED_TAIL } from "./status-board.ts";
import { Tally } from "./tally.ts";

/** At the start a person waits; later nobody does, and the retries have no end. */
const START_RETRY_MS_MAX = 120_000;

const CHECK_RETRY_MS_MAX = 20_000;

/** What stands once a run is known and counted, before its first batch. */
export interface Opened {
  store: OpenedStore;
  prepared: PreparedRun;
  engines: EngineSetup;
  runId: string;
  spool: Spool;
  holdings: Holdings;
  tally: Tally;
  /** Rows that earlier sessions skipped at run time. */
  skippedBefore: number;
}

/** Lets one thing go at the end of a run, however it ends. */
export type Closer = () => Promise<void> | void;

/**
 * Opens store, inputs, plan and spool, and counts what is there, in an order in which each refusal leaves the store
 * as it was: nothing is written to it here. What is opened is pushed to `closers`, also where a later step throws.
 */
export async function openRun(
  options: ExtractOptions,
  tools: ExtractTools,
  closers: Closer[],
): Promise<Opened> {
  const { board, log, stop, host, pidAlive } = tools;
  const patience = startPatience(tools);
  assertAttachments(options.attachments);
  board.phase("planning", "opening the store");
  const opened = await openStore(options.spec);
  closers.push(() => opened.close());
  // A wrong --endpoint looks like a store that is down: a person hears of it soon, a keeper starts us again.
  await withRetries(() => opened.check(stop), { ...patience, deadlineMs: CHECK_RETRY_MS_MAX });
  const store = patientStore(opened, patience);

  const standing = await readRunRecord(store, stop);
  const begun = engineFactsOf(standing);
  const engines = await options.engines(begun);
  board.resumeCommand(engines.resumeCommand);
  const change = engineChange(begun, engines.facts);
  if (change !== null) log.warn("run.engine_changed", { change });
  board.engineChange(change);

  const prepared = await prepareRun(options.request, {
    store,
    standing,
    runDirectory: options.runDirectory,
    log,
    onPhase: (phase, detail) => board.phase("planning", phase, detail),
    signal: stop,
  });
  closers.push(() => prepared.rows.close());
  const { plan } = prepared;
  const runId = runIdOf(prepared.identity);
  const totals = planTotals(plan);
  if (!prepared.record) assertRowsFit(prepared.rows.path);
  assertBudget({
    budgetBytes: options.spool.budgetBytes,
    packBytesMax: totals.largestPackBytes,
    engines: engines.commands.length,
  });

  board.phase("planning", "looking for another run on this part");
  await claimPart({
    store,
    part: options.part,
    host,
    pidAlive,
    takeOver: options.takeOver,
    onWaiting: (seconds) =>
      board.phase(
        "planning",
        "waiting to see whether another run on this part lives",
        `up to ${seconds} s; --take-over if you know that it is dead`,
      ),
    signal: stop,
  });
  const spool = await Spool.open({
    ...options.spool,
    owner: { runId, part: `${options.part.index}/${options.part.count}` },
    log,
    nowMs: tools.nowMs,
  });
  // Where no pack waits in it, the directory is free again, also after a refusal or a stop.
  closers.push(() => spool.close({ release: true }));

  board.phase("planning", "listing what the store holds");
  const holdings = await listRun(store, plan, patience);
  if (holdings.aliens.length > 0) log.warn("store.aliens", { count: holdings.aliens.length });
  for (const { key, bytes, plannedBytes } of holdings.torn) {
    log.error("store.torn", { key, bytes, planned_bytes: plannedBytes });
  }
  const tally = new Tally(plan, options.part, holdings.committed);
  // What the plan skips belongs to no batch: the first part tells of it.
  const planSkips = options.part.index === 1 ? skipsOf(plan) : { count: 0, rows: [] };
  const cost = readForwardCost(options.request.modelDirectory, Math.max(...prepared.identity.taps));
  board.opened({ id: runId, tally, planSkips, cost });
  const committedSkips = holdings.withSkips.filter((batch) => holdings.committed[batch]);
  const ours = committedSkips.filter((batch) => isOfPart(batch, options.part));
  const skippedBefore = await readSkips(store, ours, stop);
  board.skipped(skippedBefore);
  return {
    store: opened,
    prepared,
    engines,
    runId,
    spool,
    holdings,
    tally,
    skippedBefore: skippedBefore.length,
  };
}

function skipsOf({ skippedRows, skippedReasons }: Plan): PlanSkips {
  const rows = Array.from(skippedRows.subarray(0, SKIPPED_TAIL), (row, i) => ({
    row,
    reason: `${reasonOf(skippedReasons[i]!)} (left out by the plan)`,
  }));
  return { count: skippedRows.length, rows };
}

/** What the store holds of the plan now. */
export function listRun(store: OpenedStore, plan: Plan, patience: RetryOptions): Promise<Holdings> {
  const options = {
    batches: batchCount(plan),
    plannedBytes: (batch: number) => batchBytes(plan, batch),
    signal: patience.signal,
  };
  return withRetries(() => listHoldings(store, options), patience);
}

/** Retries of a start: two minutes, then the person hears why. */
export function startPatience({ log, random, nowMs, stop }: ExtractTools): RetryOptions {
  return { signal: stop, deadlineMs: START_RETRY_MS_MAX, log, random, nowMs };
}
