import { crc32c } from "../base/checksum.ts";
import { eachOf } from "../base/each.ts";
import { buildHeader } from "../base/safetensors.ts";
import { packLayout } from "../pack/layout.ts";
import { readPackHeader } from "../pack/reader.ts";
import { batchCount, batchOf, type Plan } from "../plan/plan.ts";
import { INDEX_FILE, packKey } from "../store/keys.ts";
import type { Store } from "../store/store.ts";

const INDEX_FORMAT = "forebay-index-1";

/**
 * Puts index.safetensors once every batch is committed, from the packs' own headers: one small range request a pack.
 * A convenience for readers that want no plan; the packs and the plan remain the truth. Does nothing where it stands.
 */
export async function publishIndex(
  store: Store,
  run: { runId: string; plan: Plan },
  options: { parallel: number; signal?: AbortSignal },
): Promise<void> {
  if (await store.head(INDEX_FILE, options.signal)) return;
  const { plan } = run;
  const crcs = new Uint32Array(plan.rows.length);
  const begins = new BigUint64Array(plan.rows.length);
  const ends = new BigUint64Array(plan.rows.length);
  const packs = new Uint32Array(plan.rows.length);
  const skipped = new Uint8Array(plan.rows.length);
  await eachOf(Array.from({ length: batchCount(plan) }).keys(), options.parallel, async (batch) => {
    const layout = packLayout(batchOf(plan, batch), plan.options.shape);
    const key = packKey(batch);
    const bytes = await store.get(key, { startByte: 0, endByte: layout.headerBytes }, options.signal);
    if (!bytes) throw new Error(`${key} is committed and not there`);
    const { samples } = readPackHeader(bytes, key, layout.bytes);
    for (const [i, sample] of samples.entries()) {
      const at = plan.batchStart[batch]! + i;
      crcs[at] = sample.crc32c;
      begins[at] = BigInt(sample.startByte);
      ends[at] = BigInt(sample.endByte);
      packs[at] = batch;
      skipped[at] = sample.skipped === null ? 0 : 1;
    }
  });
  const count = plan.rows.length;
  // 8-byte columns first, so that each is aligned to its width.
  const header = buildHeader(
    [
      { name: "begin", dtype: "U64", shape: [count] },
      { name: "end", dtype: "U64", shape: [count] },
      { name: "row", dtype: "U32", shape: [count] },
      { name: "pack", dtype: "U32", shape: [count] },
      { name: "tokens", dtype: "U32", shape: [count] },
      { name: "crc32c", dtype: "U32", shape: [count] },
      { name: "skipped", dtype: "U8", shape: [count] },
    ],
    { format: INDEX_FORMAT, run_id: run.runId },
  );
  const columns = [begins, ends, plan.rows, packs, plan.tokens, crcs, skipped];
  const views = columns.map(({ buffer, byteOffset, byteLength }) =>
    Buffer.from(buffer, byteOffset, byteLength),
  );
  const body = Buffer.concat([header, ...views]);
  await store.put(INDEX_FILE, body, { crc32c: crc32c(body), createOnly: true, signal: options.signal });
}
