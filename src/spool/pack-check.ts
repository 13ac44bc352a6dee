import { crc32c, crc32cCombine, crcToHex } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { headerLength } from "../base/safetensors.ts";
import type { PackLayout } from "../pack/layout.ts";
import { checkPackHeader, readPackHeader } from "../pack/reader.ts";

/** Bytes of a pack wherever they lie: a file read into memory slice by slice, or ranges of a stored object. */
export interface PackBytes {
  bytes: number;
  /** No `read` but that of the header is for more. */
  sliceBytes: number;
  /** [startByte, endByte), whole or it throws; in ascending order. The answer may be overwritten by the next call. */
  read(startByte: number, endByte: number): Uint8Array | Promise<Uint8Array>;
}

/** What a pack must be by the plan. */
export interface PackExpectation {
  /** The run's identity as packs carry it, 64 hex digits. */
  identity: string;
  layout: PackLayout;
}

/** Of a file: small enough that what was read is still in the processor's cache when it is hashed. */
export const FILE_SLICE_BYTES = 2 ** 20;
/** Of a stored object: each slice is a request, held in memory. */
export const OBJECT_SLICE_BYTES = 8 * 2 ** 20;

/**
 * Reads a pack once from beginning to end and holds it against the plan and against itself: its header, every
 * offset, every sample's CRC-32C. Returns the CRC-32C of the whole object.
 * Throws RunError: exit identity for a sound header of another run, exit integrity for anything else that is not
 * exactly the planned pack.
 */
export async function checkPack(
  source: PackBytes,
  expected: PackExpectation,
  subject: string,
): Promise<number> {
  const { layout, identity } = expected;
  if (source.bytes < 8) throw torn(subject, `expected ${layout.bytes} bytes, found ${source.bytes}`);
  // The header claims its own length: never more than the planned one (or 1 MiB, another run's) is read by it.
  const first = Buffer.from(await source.read(0, 8));
  const headerBytes = 8 + headerLength(first, subject, source.bytes);
  if (headerBytes > Math.max(layout.headerBytes, 2 ** 20)) {
    throw torn(subject, `the header claims ${headerBytes} bytes, expected ${layout.headerBytes}`);
  }
  const header = Buffer.concat([first, await source.read(8, headerBytes)]);
  const pack = readPackHeader(header, subject, source.bytes);
  const verdict = checkPackHeader(pack, layout, identity);
  if (verdict.kind === "other-identity") {
    throw new RunError({
      op: "check pack",
      subject,
      message: `expected a pack of run ${identity.slice(0, 16)}, found one of run ${verdict.found.slice(0, 16)}`,
      safe: "it was left as it is",
      hint: "use another address: this one holds a run with other weights, rows, taps or plan",
      exit: EXIT.identity,
    });
  }
  if (verdict.kind === "alien") throw torn(subject, verdict.message);

  let whole = crc32c(header);
  for (const sample of pack.samples) {
    let crc = 0;
    for (let at = sample.startByte; at < sample.endByte; at += source.sliceBytes) {
      crc = crc32c(await source.read(at, Math.min(sample.endByte, at + source.sliceBytes)), crc);
    }
    if (crc !== sample.crc32c) {
      throw torn(
        subject,
        `row ${sample.row} should have the CRC-32C ${crcToHex(sample.crc32c)}, its bytes have ${crcToHex(crc)}`,
      );
    }
    whole = crc32cCombine(whole, crc, sample.endByte - sample.startByte);
  }
  return whole;
}

function torn(subject: string, message: string): RunError {
  return new RunError({
    op: "check pack",
    subject,
    message,
    safe: "it was left as it is",
    exit: EXIT.integrity,
  });
}
