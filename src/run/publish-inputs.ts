import { constants } from "node:buffer";
import { createHash } from "node:crypto";
import { closeSync, fstatSync, openSync, statSync } from "node:fs";
import { basename } from "node:path";
import { formatBytes } from "../base/bytes.ts";
import { crc32c } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { ioBuffer } from "../base/io-buffer.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { planTotals } from "../plan/plan.ts";
import { attachmentKey, planKey, rowsKey } from "../store/keys.ts";
import { type RetryOptions, withRetries } from "../store/retry.ts";
import type { Store, StoreSpec, StoreTraits } from "../store/store.ts";
import { verifyObject } from "../store/verify-object.ts";
import type { PreparedRun } from "./prepare.ts";
import { publishRunRecord, type RunRecord, runIdOf } from "./record.ts";

/** S3's bound on one PUT, and Node's on one buffer (4 GiB in Node 20), with room for how ours begins. */
const OBJECT_BYTES_MAX = Math.min(5 * 2 ** 30, constants.MAX_LENGTH - 4096);

export interface PublishOptions {
  spec: StoreSpec;
  traits: StoreTraits;
  /** Files stored beside the run under inputs/. */
  attachments: string[];
  facts: RunRecord["facts"];
  retry: RetryOptions;
}

/**
 * Puts rows file, attachments and plan, and run.json last, so that a run.json that exists names objects that exist.
 * All are named by their hashes: doing it twice, or from two machines, is harmless. Returns what stands in run.json.
 */
export async function publishInputs(
  store: Store,
  prepared: PreparedRun,
  options: PublishOptions,
): Promise<RunRecord> {
  const { identity, plan, rows } = prepared;
  const totals = planTotals(plan);
  const keys = {
    rows: rowsKey(identity.rows),
    plan: planKey(identity.plan),
    attached: options.attachments.map((path) => attachmentKey(basename(path))),
  };
  await putOnce(store, keys.rows, readWhole(rows.path), options);
  for (const [i, path] of options.attachments.entries()) {
    await putOnce(store, keys.attached[i]!, readWhole(path), options);
  }
  if (prepared.planBytes) await putOnce(store, keys.plan, prepared.planBytes, options);
  const record: RunRecord = {
    format: "forebay-run-1",
    run_id: runIdOf(identity),
    identity,
    numbering: prepared.numbering,
    files: keys,
    totals: {
      rows: totals.rows,
      planned: totals.planned,
      skipped: totals.rows - totals.planned,
      tokens: totals.tokens,
      batches: totals.batches,
      bytes: totals.bytes,
    },
    store: {
      endpoint: options.spec.kind === "s3" ? options.spec.endpoint : null,
      region: options.spec.kind === "s3" ? options.spec.region : null,
      path_style: options.spec.kind === "s3" ? options.spec.pathStyle : null,
      publish: options.traits.publish,
      verify: options.traits.verify,
    },
    facts: options.facts,
  };
  return withRetries(() => publishRunRecord(store, record, options.retry.signal), options.retry);
}

/** Throws (usage) unless every attachment is a readable file with a name of its own. Call it before anything is put. */
export function assertAttachments(paths: readonly string[]): void {
  const names = new Set<string>();
  for (const path of paths) {
    const name = basename(path);
    if (!/^[A-Za-z0-9][A-Za-z0-9._-]*$/.test(name) || names.has(name) || name.startsWith("rows-")) {
      throw badAttachment(path, `its name ${JSON.stringify(name)} is taken, reserved or not plain`);
    }
    names.add(name);
    const stat = statSync(path, { throwIfNoEntry: false });
    if (!stat?.isFile()) throw badAttachment(path, "there is no such file");
    if (stat.size > OBJECT_BYTES_MAX)
      throw badAttachment(path, `it has ${formatBytes(stat.size)}, more than one PUT carries`);
  }
}

/** Never over another object; verified by a request of its own, as packs are. */
/** Throws (usage) where the rows file is larger than one PUT carries. Call it before anything is begun. */
export function assertRowsFit(path: string): void {
  const { size } = statSync(path);
  if (size <= OBJECT_BYTES_MAX) return;
  throw new RunError({
    op: "store inputs",
    subject: path,
    message: `the rows take ${formatBytes(size)}, more than one PUT carries (${formatBytes(OBJECT_BYTES_MAX)})`,
    hint: "split the dataset with --rows A:B into several runs",
    exit: EXIT.usage,
  });
}

async function putOnce(store: Store, key: string, body: Buffer, options: PublishOptions): Promise<void> {
  const { traits, retry } = options;
  const crc = crc32c(body);
  const md5 = traits.verify === "etag" ? createHash("md5").update(body).digest("hex") : undefined;
  const expected = { key, bytes: body.length, crc32c: crc, md5 };
  const look = () => withRetries(() => verifyObject(store, traits, expected, retry.signal), retry);
  let standing = await look();
  if (standing.kind === "missing") {
    const createOnly = traits.publish === "create-only";
    await withRetries(
      () => store.put(key, body, { crc32c: crc, md5, createOnly, signal: retry.signal }),
      retry,
    );
    standing = await look();
  }
  if (standing.kind === "same") return;
  throw new RunError({
    op: "store inputs",
    subject: `${store.address}/${key}`,
    message: standing.kind === "missing" ? "the store took it and does not have it" : standing.found,
    safe: "it was not overwritten",
    hint: "another file of that name was attached before, or the object is torn: choose another name, or remove it",
    exit: EXIT.integrity,
  });
}

function readWhole(path: string): Buffer {
  const fd = openSync(path, "r");
  try {
    return readExactlySync(fd, ioBuffer(fstatSync(fd).size), { startByte: 0, path });
  } finally {
    closeSync(fd);
  }
}

function badAttachment(path: string, message: string): RunError {
  return new RunError({
    op: "attach file",
    subject: path,
    message,
    safe: "nothing was written to the store",
    hint: "--attach takes plain files with names of letters, digits, dot, dash and underscore",
    exit: EXIT.usage,
  });
}
