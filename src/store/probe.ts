import { createHash, randomBytes } from "node:crypto";
import { crc32c } from "../base/checksum.ts";
import { RunError } from "../base/errors.ts";
import { type RetryOptions, withRetries } from "./retry.ts";
import { type OpenedStore, type Store, StoreError, type StoreTraits } from "./store.ts";

/** Enough writers that a store which checks and then writes lets two of them through. */
const WRITERS = 16;

/**
 * Finds out by trying, on throw-away keys below `probe/`, what the store does with create-only PUTs, wrong checksums,
 * HEAD, LIST and ranges. Never by a vendor's name: the same server differs by version and by what stands before it.
 * About 30 small requests; removes what it put. Throws StoreError where the store cannot be used at all.
 */
export async function probeStore(store: OpenedStore, options: RetryOptions): Promise<StoreTraits> {
  const probe = new Probe(store, options);
  await probe.try((signal) => store.check(signal));
  await removeLeftovers(store);
  try {
    const createOnly = (await secondPutIsRefused(probe)) && (await oneWriterWins(probe));
    const refusesWrongChecksum = await wrongChecksumIsRefused(probe);
    const stored = await whatHeadSays(probe);
    return describe({
      createOnly,
      refusesWrongChecksum,
      ...stored,
      listed: await listSeesIt(probe),
      ranged: await rangeIsHonoured(probe),
    });
  } finally {
    await probe.cleanUp();
  }
}

/** A probe takes seconds; what is so old was left by one that was killed, and no other machine is at it. */
const LEFTOVER_MS_MIN = 60 * 60_000;

async function removeLeftovers(store: OpenedStore): Promise<void> {
  try {
    for await (const { key, lastModifiedMs, serverDateMs } of store.list("probe/")) {
      if (lastModifiedMs === null || serverDateMs === null) continue;
      if (serverDateMs - lastModifiedMs > LEFTOVER_MS_MIN) await store.delete(key);
    }
  } catch {
    // They harm nobody; the next start tries again.
  }
}

class Probe {
  readonly store: Store;
  /** What every probe that needs an object looks at. */
  readonly body = randomBytes(1024);
  readonly #options: RetryOptions;
  readonly #folder = `probe/${randomBytes(8).toString("hex")}`;
  readonly #keys: string[] = [];

  constructor(store: Store, options: RetryOptions) {
    this.store = store;
    this.#options = options;
  }

  /** A key that nobody else has used; a retried step takes another, so that a lost answer cannot look like a rival. */
  newKey(): string {
    const key = `${this.#folder}/${this.#keys.length}`;
    this.#keys.push(key);
    return key;
  }

  try<T>(step: (signal?: AbortSignal) => Promise<T>): Promise<T> {
    return withRetries(() => step(this.#options.signal), this.#options);
  }

  put(key: string, body: Uint8Array, createOnly: boolean, signal?: AbortSignal) {
    return this.store.put(key, body, { crc32c: crc32c(body), createOnly, signal });
  }

  /** A key that holds `body`. */
  async stored(): Promise<string> {
    const key = this.newKey();
    await this.try((signal) => this.put(key, this.body, false, signal));
    return key;
  }

  async cleanUp(): Promise<void> {
    // What cannot be removed lies below probe/ and harms nobody; the probe's own outcome matters more.
    await Promise.allSettled(this.#keys.map((key) => this.store.delete(key)));
  }
}

async function secondPutIsRefused(probe: Probe): Promise<boolean> {
  return probe.try(async (signal) => {
    const key = probe.newKey();
    try {
      await probe.put(key, probe.body, true, signal);
      const second = await probe.put(key, randomBytes(1024), true, signal);
      const kept = await probe.store.get(key, null, signal);
      return second.kind === "exists" && kept !== null && kept.equals(probe.body);
    } catch (error) {
      // 501: it says that it does not know the condition, which is better than ignoring it.
      if (error instanceof StoreError && error.kind === "unsupported") return false;
      throw error;
    }
  });
}

async function oneWriterWins(probe: Probe): Promise<boolean> {
  return probe.try(async (signal) => {
    const key = probe.newKey();
    const bodies = Array.from({ length: WRITERS }, () => randomBytes(1024));
    const puts = await Promise.allSettled(bodies.map((body) => probe.put(key, body, true, signal)));
    const winners = bodies.filter((_, i) => {
      const put = puts[i]!;
      if (put.status === "fulfilled") return put.value.kind === "created";
      // 409: told to try again later, so not a winner.
      if (put.reason instanceof StoreError && put.reason.kind === "conflict") return false;
      throw put.reason;
    });
    const kept = await probe.store.get(key, null, signal);
    return winners.length === 1 && kept !== null && kept.equals(winners[0]!);
  });
}

async function wrongChecksumIsRefused(probe: Probe): Promise<boolean> {
  const key = probe.newKey();
  const wrong = (crc32c(probe.body) ^ 1) >>> 0;
  return probe.try(async (signal) => {
    try {
      await probe.store.put(key, probe.body, { crc32c: wrong, createOnly: false, signal });
      return false;
    } catch (error) {
      if (!(error instanceof RunError)) throw error;
      const isRefusal =
        error instanceof StoreError && (error.kind === "refused-checksum" || error.status === 400);
      if (!isRefusal) throw error;
      return (await probe.store.head(key, signal)) === null;
    }
  });
}

async function whatHeadSays(probe: Probe): Promise<{ echoed: boolean; etagIsMd5: boolean }> {
  const key = await probe.stored();
  const info = await probe.try((signal) => probe.store.head(key, signal));
  if (info?.bytes !== probe.body.length) {
    throw new StoreError({
      kind: "corrupt-answer",
      op: "probe store",
      subject: `${probe.store.address}/${key}`,
      message: `put ${probe.body.length} bytes, and HEAD then found ${info ? `${info.bytes} bytes` : "nothing"}`,
      hint: "a store must show what it has acknowledged; a cache in front of it may be at fault",
    });
  }
  const md5 = createHash("md5").update(probe.body).digest("hex");
  return { echoed: info.crc32c === crc32c(probe.body), etagIsMd5: info.etag?.toLowerCase() === md5 };
}

async function listSeesIt(probe: Probe): Promise<boolean> {
  const key = await probe.stored();
  return probe.try(async (signal) => {
    for await (const info of probe.store.list(key, signal)) {
      if (info.key === key) return info.bytes === probe.body.length;
    }
    return false;
  });
}

async function rangeIsHonoured(probe: Probe): Promise<boolean> {
  const key = await probe.stored();
  const range = { startByte: 100, endByte: 300 };
  return probe.try(async (signal) => {
    try {
      const found = await probe.store.get(key, range, signal);
      return found?.equals(probe.body.subarray(range.startByte, range.endByte)) ?? false;
    } catch (error) {
      if (error instanceof StoreError && error.kind === "corrupt-answer") return false;
      throw error;
    }
  });
}

interface Findings {
  createOnly: boolean;
  refusesWrongChecksum: boolean;
  /** HEAD reports the CRC-32C of what was put. */
  echoed: boolean;
  etagIsMd5: boolean;
  listed: boolean;
  ranged: boolean;
}

/** The strongest mode that each finding allows, and in words what the weaker ones mean. */
function describe(found: Findings): StoreTraits {
  const notes: string[] = [];
  if (!found.createOnly) {
    notes.push(
      "This store does not honour create-only PUTs: only one machine may write, and every PUT is preceded by a look.",
    );
  }
  // A checksum that is stored unchecked says what we claimed, not what arrived.
  const checksum = found.echoed && found.refusesWrongChecksum;
  const verify = checksum ? "checksum" : found.etagIsMd5 ? "etag" : "readback";
  if (!found.refusesWrongChecksum) {
    notes.push(
      `This store accepts bytes that do not match their checksum: objects are checked by ${HOW[verify]}.`,
    );
  } else if (verify === "readback") {
    notes.push(
      "This store reports no checksum: objects are checked by reading them back, which costs their traffic.",
    );
  }
  if (!found.listed)
    notes.push("LIST does not show an object right after its PUT: a resumed run may redo some batches.");
  if (!found.ranged)
    notes.push("Range requests are not honoured: single samples cannot be read from this store.");
  return {
    publish: found.createOnly ? "create-only" : "overwrite",
    verify,
    refusesWrongChecksum: found.refusesWrongChecksum,
    notes,
  };
}

const HOW = {
  checksum: "their checksum",
  etag: "their ETag (MD5)",
  readback: "reading them back, which costs their traffic",
} as const;
