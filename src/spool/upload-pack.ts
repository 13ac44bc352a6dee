import { createHash } from "node:crypto";
import { closeSync, constants, openSync, rmSync } from "node:fs";
import type { ByteRange } from "../base/bytes.ts";
import { EXIT, errnoOf, isOutOfSpace, RunError } from "../base/errors.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { checkPack, FILE_SLICE_BYTES, OBJECT_SLICE_BYTES, type PackExpectation } from "../pack/check.ts";
import { packKey } from "../store/keys.ts";
import { type BodySource, type Store, StoreError, type StoreTraits } from "../store/store.ts";
import { verifyObject } from "../store/verify-object.ts";
import { type ErrorWire, toWire } from "./error-wire.ts";
import { checkSize, FileBody, isStreamed, whySpoiled } from "./file-body.ts";

/** One attempt at one pack, as a worker thread is handed it. */
export interface UploadJob {
  batch: number;
  /** The file in ready/. */
  path: string;
  expected: PackExpectation;
  /** Of the whole file, as it was made or last checked; null where nobody knows. */
  crc32c: number | null;
  traits: StoreTraits;
  /** An earlier attempt may have reached the store (a lost answer, a crash): HEAD before PUT. */
  lookFirst: boolean;
}

/** Seconds of one attempt, by what they were spent on. */
export interface AttemptSeconds {
  disk: number;
  upload: number;
  verify: number;
}

export type AttemptOutcome =
  /** Verified by a separate request, and the file deleted. */
  | { kind: "committed"; how: "created" | "ours" | "already" }
  /** The file's bytes are not those that the engine made: to be moved aside and computed again. */
  | { kind: "spoiled"; reason: string }
  /** Someone deleted the file, and the store does not have its pack: to be computed again. */
  | { kind: "vanished" }
  /** Passes by itself; the file is kept. */
  | { kind: "retry"; error: ErrorWire; lookFirst: boolean }
  /** The store, or this one key of it, needs a person; the file is kept. */
  | { kind: "blocked"; scope: "store" | "pack"; error: ErrorWire }
  /** The run cannot go on: another run's pack has our key, or the spool's disk failed. The file is kept. */
  | { kind: "fatal"; error: ErrorWire };

export interface AttemptResult {
  outcome: AttemptOutcome;
  seconds: AttemptSeconds;
  /** Bytes sent in a PUT that the store accepted. */
  uploadedBytes: number;
}

export interface AttemptTools {
  store: Store;
  /** Of bufferBytes in file-body.ts: room for two slices of the file, or for all of it until the PUT has ended. */
  buffer: Buffer;
  signal: AbortSignal;
  /** Monotonic, ms. */
  nowMs: () => number;
  /** Runs one reader of the thread after the other: side by side they only delay each other's sending. */
  readTurn?: <T>(read: () => Promise<T>) => Promise<T>;
}

/** What we are about to publish: the file's own bytes, checked by now or each before it is sent. */
interface Own {
  body: Uint8Array | BodySource;
  crc32c: number;
  /** Hex; only for stores that are verified by ETag. */
  md5: string | undefined;
}

/**
 * Create-only PUT of the file, its bytes checked before or while they are sent -> verify by a separate request ->
 * delete the file.
 * One attempt with no retries of its own: whatever fails, the file is still there (or in quarantine), and the
 * outcome says what to do. Doing it twice, at any point after any crash, ends in the same committed object.
 */
export async function uploadPack(job: UploadJob, tools: AttemptTools): Promise<AttemptResult> {
  const seconds: AttemptSeconds = { disk: 0, upload: 0, verify: 0 };
  const timed = async <T>(stage: keyof AttemptSeconds, act: () => T | Promise<T>): Promise<T> => {
    const startMs = tools.nowMs();
    try {
      return await act();
    } finally {
      seconds[stage] += (tools.nowMs() - startMs) / 1000;
    }
  };
  const key = packKey(job.batch);
  const { store, signal } = tools;
  let uploadedBytes = 0;
  let lookFirst = job.lookFirst;
  const done = (outcome: AttemptOutcome): AttemptResult => ({ outcome, seconds, uploadedBytes });

  let file: FileBody | null = null;
  try {
    let taken = false;
    if (lookFirst || job.traits.publish === "overwrite") {
      // Before the file is read: while the store is down, a try costs one small request.
      taken = (await timed("verify", () => store.head(key, signal))) !== null;
    }
    let own: Own | { reason: string };
    const { readTurn = (read) => read() } = tools;
    if (isStreamed(job.crc32c, job.traits)) {
      const onRead = (readSeconds: number) => {
        // Within the PUT's own time.
        seconds.disk += readSeconds;
        seconds.upload -= readSeconds;
      };
      file = new FileBody({ ...job, ...tools, crc32c: job.crc32c, onRead });
      own = { body: file, crc32c: job.crc32c, md5: undefined };
    } else {
      own = await readTurn(() => timed("disk", () => readOwn(job, tools.buffer)));
      if ("reason" in own) return done({ kind: "spoiled", reason: own.reason });
    }

    const { body, crc32c, md5 } = own;
    let how: "created" | "ours" | "already" = "created";
    if (!taken) {
      // From here on the store may hold our object, whatever the answer says.
      lookFirst = true;
      const put = await timed("upload", () =>
        store.put(key, body, {
          crc32c,
          md5,
          createOnly: job.traits.publish === "create-only",
          signal,
        }),
      );
      if (put.kind === "exists") taken = true;
      else uploadedBytes = body.byteLength;
    }
    const expected = { key, bytes: body.byteLength, crc32c, md5 };
    const stored = await timed("verify", () => verifyObject(store, job.traits, expected, signal));
    if (stored.kind === "missing") {
      return done(again("corrupt-answer", key, "the store accepted the pack but does not have it"));
    }
    if (taken) how = "ours";
    if (stored.kind === "different") {
      if (!(await timed("verify", () => isOtherWhole(key, job, tools)))) {
        return done(again("corrupt-answer", key, `${stored.found}, and a moment later no such object`));
      }
      how = "already";
    }
    await timed("disk", () => rmSync(job.path, { force: true }));
    return done({ kind: "committed", how });
  } catch (error) {
    // Found while it was sent: the PUT was broken off before its last bytes.
    if (file?.spoiled) return done({ kind: "spoiled", reason: file.spoiled });
    if (errnoOf(error) === "ENOENT") return done(await decideVanished(key, job, tools));
    return done(decide(error, job, lookFirst, signal.aborted));
  } finally {
    file?.close();
  }
}

/** A thread that died between its unlink and its answer leaves no file and a committed object. */
async function decideVanished(
  key: string,
  job: UploadJob,
  { store, signal }: AttemptTools,
): Promise<AttemptOutcome> {
  try {
    const info = await store.head(key, signal);
    const whole = info?.bytes === job.expected.layout.bytes;
    return whole ? { kind: "committed", how: "ours" } : { kind: "vanished" };
  } catch (error) {
    return decide(error, job, true, signal.aborted);
  }
}

/** About two milliseconds of reading and hashing. */
const YIELD_BYTES = 4 * 2 ** 20;

/** Reads the file into the buffer, checking every CRC on the way; or says what is spoiled. */
async function readOwn(job: UploadJob, buffer: Buffer): Promise<Own | { reason: string }> {
  const { bytes } = job.expected.layout;
  const fd = openSync(job.path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    const body = buffer.subarray(0, bytes);
    let yieldedByte = 0;
    const read = async (startByte: number, endByte: number) => {
      // Reading and hashing block the thread: let its sockets have their turn between slices.
      if (endByte - yieldedByte > YIELD_BYTES) {
        yieldedByte = endByte;
        await new Promise(setImmediate);
      }
      return readExactlySync(fd, body.subarray(startByte, endByte), { startByte, path: job.path });
    };
    checkSize(fd, bytes, job.path);
    const crc = await checkPack({ bytes, sliceBytes: FILE_SLICE_BYTES, read }, job.expected, job.path);
    const md5 = job.traits.verify === "etag" ? createHash("md5").update(body).digest("hex") : undefined;
    return { body, crc32c: crc, md5 };
  } catch (error) {
    const reason = whySpoiled(error);
    if (reason === null) throw error;
    return { reason };
  } finally {
    closeSync(fd);
  }
}

/**
 * Our key holds other bytes. True: they are a whole pack of this run and batch (GPU output is not bit-stable), so
 * ours may go. Throws RunError: exit identity for another run's pack, exit integrity for a torn or alien object.
 * Read twice before it condemns: a byte may also flip on its way here.
 */
async function isOtherWhole(key: string, job: UploadJob, { store, signal }: AttemptTools): Promise<boolean> {
  for (let last = false; ; last = true) {
    const info = await store.head(key, signal);
    if (!info) return false;
    const read = (startByte: number, endByte: number) => getRange(store, key, { startByte, endByte }, signal);
    try {
      await checkPack({ bytes: info.bytes, sliceBytes: OBJECT_SLICE_BYTES, read }, job.expected, key);
      return true;
    } catch (error) {
      if (last || error instanceof StoreError || !(error instanceof RunError)) throw error;
    }
  }
}

async function getRange(store: Store, key: string, range: ByteRange, signal: AbortSignal): Promise<Buffer> {
  const bytes = await store.get(key, range, signal);
  if (bytes) return bytes;
  throw new StoreError({
    kind: "corrupt-answer",
    op: "verify pack",
    subject: key,
    message: "the object was there a moment ago and is gone now",
  });
}

function decide(error: unknown, job: UploadJob, lookFirst: boolean, aborted: boolean): AttemptOutcome {
  const wire = toWire(error, { op: "upload pack", subject: job.path, exit: EXIT.disk });
  if (aborted) return { kind: "retry", error: wire, lookFirst };
  if (wire.store) {
    return wire.remedy === "retry"
      ? { kind: "retry", error: wire, lookFirst }
      : { kind: "blocked", scope: "store", error: wire };
  }
  if (error instanceof RunError && error.exit === EXIT.integrity) {
    wire.hint = `${packKey(job.batch)} is torn or not ours: look at it, and remove it by hand if it is damaged; the pack is kept in the spool`;
    return { kind: "blocked", scope: "pack", error: wire };
  }
  const passes = isOutOfSpace(error) || wire.errno === "EMFILE" || wire.errno === "ENFILE";
  return passes ? { kind: "retry", error: wire, lookFirst } : { kind: "fatal", error: wire };
}

function again(kind: "corrupt-answer", key: string, message: string): AttemptOutcome {
  const error = new StoreError({ kind, op: "verify pack", subject: key, message });
  return {
    kind: "retry",
    error: toWire(error, { op: "verify pack", subject: key, exit: EXIT.store }),
    lookFirst: true,
  };
}
