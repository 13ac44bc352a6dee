import { crc32c, crcToHex } from "../base/checksum.ts";
import type { Store, StoreTraits } from "./store.ts";

/** What should be there, as the caller computed it before the PUT. */
export interface ExpectedObject {
  key: string;
  bytes: number;
  /** CRC-32C of all bytes. */
  crc32c: number;
  /** 32 hex digits; only asked for where the store is verified by ETag, and read back without it. */
  md5?: string;
}

export type Verification =
  | { kind: "same" }
  | { kind: "missing" }
  /** `found`: the difference in words. */
  | { kind: "different"; found: string };

/** Bytes of one range when an object is read back: bounds the memory, whatever the object's size. */
const SLICE_BYTES = 16 * 2 ** 20;

/**
 * The separate check of invariant 1: asks the store anew what it has, never trusting the PUT's own answer. By the
 * store's checksum, by its MD5 ETag, or by reading the bytes back, whichever the probe found to be worth something;
 * also read back where the store stopped saying what it said when it was probed.
 */
export async function verifyObject(
  store: Store,
  traits: Pick<StoreTraits, "verify">,
  expected: ExpectedObject,
  signal?: AbortSignal,
): Promise<Verification> {
  const info = await store.head(expected.key, signal);
  if (!info) return { kind: "missing" };
  if (info.bytes !== expected.bytes) {
    return { kind: "different", found: `expected ${expected.bytes} bytes, found ${info.bytes}` };
  }
  if (traits.verify === "checksum" && info.crc32c !== null) {
    return compare("CRC-32C", crcToHex(expected.crc32c), crcToHex(info.crc32c));
  }
  if (traits.verify === "etag" && expected.md5 && info.etag !== null) {
    return compare("MD5", expected.md5.toLowerCase(), info.etag.toLowerCase());
  }
  return readBack(store, expected, signal);
}

async function readBack(store: Store, expected: ExpectedObject, signal?: AbortSignal): Promise<Verification> {
  let crc = 0;
  for (let at = 0; at < expected.bytes; at += SLICE_BYTES) {
    const range = { startByte: at, endByte: Math.min(expected.bytes, at + SLICE_BYTES) };
    const slice = await store.get(expected.key, range, signal);
    if (!slice) return { kind: "missing" };
    crc = crc32c(slice, crc);
  }
  return compare("CRC-32C", crcToHex(expected.crc32c), crcToHex(crc));
}

function compare(what: string, expected: string, found: string): Verification {
  if (expected === found) return { kind: "same" };
  return { kind: "different", found: `expected ${what} ${expected}, found ${found}` };
}
