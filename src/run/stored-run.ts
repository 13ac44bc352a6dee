import { readFileSync } from "node:fs";
import { join } from "node:path";
import { EXIT, errnoOf, RunError } from "../base/errors.ts";
import { publishReplacing } from "../base/publish.ts";
import type { Plan } from "../plan/plan.ts";
import { decodePlan, planHashOf } from "../plan/plan-file.ts";
import type { Store } from "../store/store.ts";
import { type RunRecord, readRunRecord } from "./record.ts";

/** A run as the store alone tells it. */
export interface StoredRun {
  record: RunRecord;
  plan: Plan;
}

/**
 * Reads run.json and the plan that it names, and checks the plan against its hash. A plan never changes, so a copy
 * in `cacheDirectory` (null: none) saves the next read. Throws exit 2 where no run stands at the address.
 */
export async function loadStoredRun(
  store: Store,
  options: { cacheDirectory: string | null; signal?: AbortSignal },
): Promise<StoredRun> {
  const record = await readRunRecord(store, options.signal);
  if (!record) throw noRun(store.address);
  const path = options.cacheDirectory === null ? null : join(options.cacheDirectory, record.files.plan);
  const cached = path === null ? null : readIfWhole(path, record.identity.plan);
  if (cached) return { record, plan: decodePlan(cached, record.files.plan) };
  const bytes = await store.get(record.files.plan, null, options.signal);
  if (!bytes || planHashOf(bytes) !== record.identity.plan) {
    throw new RunError({
      op: "read plan",
      subject: `${store.address}/${record.files.plan}`,
      message: bytes
        ? "its bytes are not those that run.json names"
        : "run.json names it, and it is not there",
      safe: "packs are not touched",
      hint: "the same forebay run command makes it again from the dataset: nothing is lost",
      exit: EXIT.integrity,
    });
  }
  if (path !== null) publishReplacing(path, bytes);
  return { record, plan: decodePlan(bytes, record.files.plan) };
}

function readIfWhole(path: string, planHash: string): Buffer | null {
  try {
    const bytes = readFileSync(path);
    return planHashOf(bytes) === planHash ? bytes : null;
  } catch (error) {
    if (errnoOf(error) === "ENOENT") return null;
    throw error;
  }
}

function noRun(address: string): RunError {
  return new RunError({
    op: "find run",
    subject: address,
    message: `no run stands here: looked for ${address}/run.json`,
    hint: "forebay ls STORE lists the runs of a store; check bucket, prefix and --endpoint",
    exit: EXIT.usage,
  });
}
