import { randomBytes } from "node:crypto";
import { crc32c } from "../base/checksum.ts";
import { describeError, RunError } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import { openStore } from "../store/open.ts";
import { probeStore } from "../store/probe.ts";
import type { OpenedStore, StoreSpec } from "../store/store.ts";
import { broken, type Finding, ok, weak } from "./doctor-checks.ts";

const CONNECTIONS = [8, 32, 128];
const OBJECT_BYTES = 4 * 2 ** 20;
/** Of one level: long enough for slow starts to be over, short enough to wait for. */
const LEVEL_MS = 3_000;
/** What a level may cost at most. */
const LEVEL_BYTES_MAX = 512 * 2 ** 20;
const PROBE_RETRY_MS_MAX = 20_000;

/** Probes the store, then times uploads of throw-away objects; removes all that it put. */
export async function examineStore(spec: StoreSpec, signal: AbortSignal): Promise<Finding[]> {
  const store = await openStore(spec);
  try {
    const traits = await probeStore(store, {
      signal,
      deadlineMs: PROBE_RETRY_MS_MAX,
      log: silentLog,
      random: Math.random,
    });
    const findings = [ok("store", `${store.address} works: ${traits.publish}, verified by ${traits.verify}`)];
    for (const note of traits.notes)
      findings.push(weak("store", note, "nothing to do: Forebay works around it"));
    findings.push(...(await timeUploads(store, signal)));
    return findings;
  } catch (error) {
    signal.throwIfAborted();
    const hint = error instanceof RunError ? error.hint : undefined;
    return [broken("store", describeError(error), hint ?? "check address, endpoint and credentials")];
  } finally {
    store.close();
  }
}

async function timeUploads(store: OpenedStore, signal: AbortSignal): Promise<Finding[]> {
  const findings: Finding[] = [];
  let best = { connections: 0, mbPerS: 0 };
  for (const connections of CONNECTIONS) {
    const { bytes, seconds, failed } = await uploadFor(store, connections, signal);
    const mbPerS = bytes / 1e6 / seconds;
    if (mbPerS > best.mbPerS) best = { connections, mbPerS };
    const found = `${connections} connections: ${mbPerS.toFixed(1)} MB/s${failed ? `, ${failed} of the PUTs failed` : ""}`;
    const figures = { connections, mb_per_s: Math.round(mbPerS * 10) / 10, failed };
    findings.push(
      failed
        ? weak("store", found, "the store pushes back here; --uploads auto stays below", figures)
        : ok("store", found, figures),
    );
  }
  findings.push(
    ok("store", `fastest at ${best.connections} connections; --uploads auto finds the number by itself`, {
      best_connections: best.connections,
    }),
  );
  return findings;
}

async function uploadFor(store: OpenedStore, connections: number, signal: AbortSignal) {
  const body = randomBytes(OBJECT_BYTES);
  const crc = crc32c(body);
  const prefix = `probe/${randomBytes(8).toString("hex")}`;
  const keys: string[] = [];
  let bytes = 0;
  let failed = 0;
  const startMs = performance.now();
  const lane = async () => {
    while (performance.now() - startMs < LEVEL_MS && keys.length * OBJECT_BYTES < LEVEL_BYTES_MAX) {
      const key = `${prefix}/${keys.length}`;
      keys.push(key);
      try {
        await store.put(key, body, { crc32c: crc, createOnly: false, signal });
        bytes += OBJECT_BYTES;
      } catch (error) {
        signal.throwIfAborted();
        if (error instanceof RunError && error.remedy === "retry") failed += 1;
        else throw error;
      }
    }
  };
  try {
    const outcomes = await Promise.allSettled(Array.from({ length: connections }, lane));
    for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
    return { bytes, seconds: (performance.now() - startMs) / 1000, failed };
  } finally {
    for (let i = 0; i < keys.length; i += 32) {
      await Promise.allSettled(keys.slice(i, i + 32).map((key) => store.delete(key)));
    }
  }
}
