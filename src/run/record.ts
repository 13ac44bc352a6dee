import { createHash } from "node:crypto";
import { z } from "zod";
import { crc32c } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { RUN_JSON } from "../store/keys.ts";
import type { Store } from "../store/store.ts";

const hash = z.string().regex(/^[0-9a-f]{64}$/);
const count = z.number().int().nonnegative();

/** What makes a run this run: a difference in any of these is another run, and exits 4. */
export const Identity = z.strictObject({
  /** sha256 over the weights' file names and bytes. */
  weights: hash,
  /** sha256 of config.json in canonical form. */
  config: hash,
  /** Block ids, 0-based, ascending: output of block k before any following norm. */
  taps: z.array(count).min(1),
  /** Of the stored states. */
  dtype: z.literal("bfloat16"),
  /** sha256 of the rows file's content. */
  rows: hash,
  /** sha256 of the plan file. */
  plan: hash,
});
export type Identity = z.infer<typeof Identity>;

export const TapNumbering = z.strictObject({
  /** Forebay, z-lab/dflash, SpecForge: i = out(i). */
  blocks: z.array(count),
  /** vLLM, speculators: i = out(i-1); id N is out(N-1) before the final norm. */
  vllm: z.array(count),
  /** Hugging Face output_hidden_states; null where HF has no such state (its last entry is after the norm). */
  hf: z.array(count.nullable()),
  last_state: z.boolean(),
  last_state_norm: z.enum(["pre-norm", "post-norm"]).nullable(),
});
export type TapNumbering = z.infer<typeof TapNumbering>;

const plain = z.union([z.string(), z.number(), z.boolean(), z.null()]);

/** run.json: identity, and facts that are recorded and never compared. */
export const RunRecord = z.object({
  format: z.literal("forebay-run-1"),
  /** sha256 of the identity's canonical JSON; packs carry it. */
  run_id: hash,
  identity: Identity,
  numbering: TapNumbering,
  files: z.object({ rows: z.string(), plan: z.string(), attached: z.array(z.string()) }),
  totals: z.object({
    rows: count,
    planned: count,
    skipped: count,
    tokens: count,
    batches: count,
    bytes: count,
  }),
  store: z.object({
    endpoint: z.string().nullable(),
    region: z.string().nullable(),
    path_style: z.boolean().nullable(),
    publish: z.enum(["create-only", "overwrite"]),
    verify: z.enum(["checksum", "etag", "readback"]),
  }),
  facts: z.record(z.string(), plain),
});
export type RunRecord = z.infer<typeof RunRecord>;

/** How a run's states are computed, as `facts` of run.json hold it: what goes on with a run goes on in the same way. */
const EngineFacts = z.object({
  engine: z.enum(["onnx", "transformers", "vllm"]),
  /** As it was asked for. */
  dtype: z.enum(["auto", "float32", "bfloat16", "float16"]),
  attn: z.string().nullable(),
  strict: z.boolean(),
});
export type EngineFacts = z.infer<typeof EngineFacts>;

/** Those that are known: an older run.json holds the engine only, and one of a later version perhaps another. */
export function engineFactsOf(record: RunRecord | null): Partial<EngineFacts> {
  return EngineFacts.partial().safeParse(record?.facts ?? {}).data ?? {};
}

/** What a session computes in another way than the run was begun with, in words; null: nothing. */
export function engineChange(begun: Partial<EngineFacts>, now: EngineFacts): string | null {
  const names = (Object.keys(now) as (keyof EngineFacts)[]).filter(
    (name) => begun[name] !== undefined && begun[name] !== now[name],
  );
  const words = (facts: Partial<EngineFacts>) =>
    names.map((name) => `${name} ${facts[name] ?? "unset"}`).join(", ");
  return names.length === 0 ? null : `begun with ${words(begun)}; goes on with ${words(now)}`;
}

/** sha256 of the identity with its keys in the schema's order, 64 hex digits. */
export function runIdOf(identity: Identity): string {
  return createHash("sha256")
    .update(JSON.stringify(Identity.parse(identity)))
    .digest("hex");
}

/** The run that stands at this address, or null. Throws exit 78 on one of a newer version, 9 on a damaged one. */
export async function readRunRecord(store: Store, signal?: AbortSignal): Promise<RunRecord | null> {
  const bytes = await store.get(RUN_JSON, null, signal);
  return bytes === null ? null : parseRunRecord(bytes, `${store.address}/${RUN_JSON}`);
}

export function parseRunRecord(bytes: Uint8Array, subject: string): RunRecord {
  const json = parseJson(bytes, subject);
  const format = (json as { format?: unknown } | null)?.format;
  const version = typeof format === "string" ? /^forebay-run-(\d+)$/.exec(format)?.[1] : undefined;
  if (version !== undefined && Number(version) > 1) {
    throw new RunError({
      op: "read run.json",
      subject,
      message: `this run was made by a newer Forebay (${format}), this one reads forebay-run-1`,
      safe: "nothing was changed",
      hint: "install the newer Forebay: npm install forebay@latest",
      exit: EXIT.configuration,
    });
  }
  const parsed = RunRecord.safeParse(json);
  if (!parsed.success) throw damaged(subject, z.prettifyError(parsed.error));
  if (runIdOf(parsed.data.identity) !== parsed.data.run_id)
    throw damaged(subject, "run_id is not the identity's hash");
  return parsed.data;
}

/** Writes run.json create-only, after the files it names; returns what stands there afterwards, ours or another's. */
export async function publishRunRecord(
  store: Store,
  record: RunRecord,
  signal?: AbortSignal,
): Promise<RunRecord> {
  const body = Buffer.from(`${JSON.stringify(record, null, 2)}\n`);
  const outcome = await store.put(RUN_JSON, body, { crc32c: crc32c(body), createOnly: true, signal });
  if (outcome.kind === "created") return record;
  const standing = await readRunRecord(store, signal);
  if (!standing)
    throw damaged(`${store.address}/${RUN_JSON}`, "the store refused to create it and does not have it");
  return standing;
}

/** Throws exit 4, printing each difference, unless both identities are the same. */
export function assertSameIdentity(here: Identity, there: RunRecord, address: string): void {
  const differences = identityDifferences(here, there.identity);
  if (differences.length === 0) return;
  throw new RunError({
    op: "resume run",
    subject: address,
    message: `another run stands at this address:\n${differences.map((d) => `  ${d}`).join("\n")}`,
    safe: "nothing was written; the stored packs are as they were",
    hint: "use the settings of the stored run (forebay ls shows them), or another name for this one",
    exit: EXIT.identity,
  });
}

/** One line a field that differs: what is stored, what was asked. */
function identityDifferences(here: Identity, there: Identity): string[] {
  const names: Record<keyof Identity, string> = {
    weights: "model weights",
    config: "model config.json",
    taps: "taps",
    dtype: "dtype",
    rows: "dataset rows",
    plan: "plan (order, seed, pack size, limits)",
  };
  return (Object.keys(names) as (keyof Identity)[]).flatMap((field) => {
    const [stored, asked] = [show(there[field]), show(here[field])];
    return stored === asked ? [] : [`${names[field]}: stored ${stored}, asked ${asked}`];
  });
}

function show(value: string | number[]): string {
  return typeof value === "string" && value.length === 64 ? `sha256 ${value.slice(0, 16)}…` : String(value);
}

function parseJson(bytes: Uint8Array, subject: string): unknown {
  try {
    return JSON.parse(Buffer.from(bytes).toString("utf8"));
  } catch (cause) {
    throw damaged(subject, "it is not JSON", cause);
  }
}

function damaged(subject: string, message: string, cause?: unknown): RunError {
  return new RunError({
    op: "read run.json",
    subject,
    message,
    safe: "packs are not touched",
    hint: "no run of Forebay writes this: look at the object, and choose another name if it is not yours",
    exit: EXIT.integrity,
    cause,
  });
}
