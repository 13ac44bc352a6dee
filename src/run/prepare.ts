import { join } from "node:path";
import { formatBytes } from "../base/bytes.ts";
import { EXIT, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { RowsFile } from "../dataset/rows-file.ts";
import { type ModelConfig, readModelConfig } from "../model/config.ts";
import { fingerprintModel } from "../model/fingerprint.ts";
import { tapsMetadata } from "../model/taps.ts";
import type { PackShape } from "../pack/layout.ts";
import { metadataBytesOf } from "../pack/metadata.ts";
import { type LongPolicy, makePlan, type Plan, type PlanOrder } from "../plan/plan.ts";
import { encodePlan, planHashOf } from "../plan/plan-file.ts";
import type { Store } from "../store/store.ts";
import { type DatasetChoice, type RowsOptions, rowsOfDataset, rowsOfStore } from "./inputs.ts";
import { assertSameIdentity, type Identity, type RunRecord, type TapNumbering } from "./record.ts";
import { loadStoredRun } from "./stored-run.ts";

/** What a person asks for; everything else of a run follows from it. */
export interface RunRequest {
  modelDirectory: string;
  /** null: the run in the store says which rows (`forebay resume`). */
  dataset: DatasetChoice | null;
  /** Forebay's block ids, ascending; null: as the run in the store. */
  taps: number[] | null;
  packBytesMax: number;
  order: PlanOrder;
  seed: number;
  maxTokens: number | null;
  long: LongPolicy;
}

/** A run that is known in full, before anything of it is written to the store. */
export interface PreparedRun {
  identity: Identity;
  model: ModelConfig;
  numbering: TapNumbering;
  rows: RowsFile;
  plan: Plan;
  /** The plan file's bytes; null where the store already has it. */
  planBytes: Buffer | null;
  /** What stands in the store, or null: then this is a new run. */
  record: RunRecord | null;
}

export interface PrepareTools {
  store: Store;
  /** run.json of the store, or null. */
  standing: RunRecord | null;
  runDirectory: string;
  log: Log;
  /** `detail`: how far it is, told often. */
  onPhase?: (phase: string, detail?: string) => void;
  signal?: AbortSignal;
}

/**
 * Reads model and dataset, and makes the plan; refuses (exit 4, with the differences) to mix two
 * runs. Reads the store and writes only the run directory.
 */
export async function prepareRun(request: RunRequest, tools: PrepareTools): Promise<PreparedRun> {
  const { store, standing, runDirectory, log, signal } = tools;
  const model = readModelConfig(request.modelDirectory);
  const taps = request.taps ?? standing?.identity.taps ?? null;
  if (!taps) throw nothingToResume(store);
  const numbering = numberingOf(taps, model.blocks);

  const onPhase = (phase: string, detail?: string) => tools.onPhase?.(phase, detail);
  onPhase("fingerprinting the weights");
  const fingerprint = await fingerprintModel(request.modelDirectory, {
    cacheFile: join(runDirectory, "weights.json"),
    onProgress: (done, total) =>
      onPhase("fingerprinting the weights", `${formatBytes(done)} of ${formatBytes(total)}`),
    signal,
  });

  if (!request.dataset && !standing) throw nothingToResume(store);
  const reading = request.dataset ? "reading the dataset" : "fetching the rows from the store";
  onPhase(reading);
  const rowsOptions: RowsOptions = {
    directory: join(runDirectory, "inputs"),
    log,
    onProgress: ({ rows, tokens }) =>
      onPhase(reading, `${countText(rows)} rows, ${countText(tokens)} tokens`),
    signal,
  };
  const rows = request.dataset
    ? await rowsOfDataset(request.dataset, rowsOptions)
    : await rowsOfStore(store, standing!, rowsOptions);
  try {
    onPhase("making the plan", `${countText(rows.info.rows)} rows`);
    const { plan, planBytes, planHash } = await planFor(request, { rows, model, taps, numbering }, tools);
    const identity: Identity = {
      weights: fingerprint.weights,
      config: fingerprint.config,
      taps,
      dtype: "bfloat16",
      rows: rows.info.hash,
      plan: planHash,
    };
    if (standing) assertSameIdentity(identity, standing, store.address);
    log.info("run.planned", {
      rows: rows.info.rows,
      samples: plan.rows.length,
      skipped: plan.skippedRows.length,
      duplicates: rows.info.duplicates,
      batches: plan.batchStart.length - 1,
    });
    return { identity, model, numbering, rows, plan, planBytes, record: standing };
  } catch (error) {
    rows.close();
    throw error;
  }
}

function countText(count: number): string {
  return count.toLocaleString("en-US");
}

/** The shape of every pack of a run. */
export function packShapeOf(numbering: TapNumbering, model: ModelConfig, hasLossMask: boolean): PackShape {
  if ((numbering.blocks.length * model.hidden) % 4 !== 0) {
    throw new RunError({
      op: "plan",
      subject: `--taps ${numbering.blocks.join(",")}`,
      message: `taps x hidden must be a multiple of 4, found ${numbering.blocks.length} x ${model.hidden}`,
      hint: "choose another number of taps",
      exit: EXIT.usage,
    });
  }
  return {
    taps: numbering.blocks.length,
    hidden: model.hidden,
    hasLossMask,
    metadataBytes: metadataBytesOf(numbering),
  };
}

/** The taps in every numbering, as run.json and packs record them. */
export function numberingOf(taps: number[], blocks: number): TapNumbering {
  const { blocks: ids, vllm, hf, lastState, lastStateNorm } = tapsMetadata(taps, blocks);
  return { blocks: ids, vllm, hf, last_state: lastState, last_state_norm: lastStateNorm };
}

interface PlanInputs {
  rows: RowsFile;
  model: ModelConfig;
  taps: number[];
  numbering: TapNumbering;
}

/** A resume from the store alone takes the stored plan; everything else makes it and lets the identity decide. */
async function planFor(
  request: RunRequest,
  inputs: PlanInputs,
  { store, runDirectory, signal }: PrepareTools,
) {
  const { rows, model, numbering } = inputs;
  if (!request.dataset) {
    const stored = await loadStoredRun(store, { cacheDirectory: join(runDirectory, "inputs"), signal });
    return { plan: stored.plan, planBytes: null, planHash: stored.record.identity.plan };
  }
  assertIdsInVocabulary(rows, model, request.dataset.path);
  const plan = makePlan(
    { lengths: rows.lengths(), firstRow: rows.info.firstRow, subject: request.dataset.path },
    {
      shape: packShapeOf(numbering, model, rows.info.hasMask),
      packBytesMax: request.packBytesMax,
      order: request.order,
      seed: request.seed,
      maxTokens: request.maxTokens,
      long: request.long,
      positions: model.positions,
    },
  );
  const planBytes = encodePlan(plan, rows.info.hash);
  return { plan, planBytes, planHash: planHashOf(planBytes) };
}

function assertIdsInVocabulary(rows: RowsFile, model: ModelConfig, path: string): void {
  const { maxId } = rows.info;
  if (maxId < model.vocab) return;
  throw new RunError({
    op: "plan",
    subject: path,
    message: `the dataset holds token id ${maxId}, the model's vocabulary ends at ${model.vocab - 1}`,
    safe: "nothing was written to the store",
    hint: "the dataset was tokenised for another model: forebay tokenize --model DIR makes one for this",
    exit: EXIT.usage,
  });
}

function nothingToResume(store: Store): RunError {
  return new RunError({
    op: "resume run",
    subject: store.address,
    message: `no run stands here: looked for ${store.address}/run.json`,
    hint: "start it with forebay run ADDRESS --model DIR --dataset PATH --taps ...",
    exit: EXIT.usage,
  });
}
