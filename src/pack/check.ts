import { crc32c, crc32cCombine, crcToHex } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { headerLength } from "../base/safetensors.ts";
import type { PackLayout } from "./layout.ts";
import { checkPackHeader, type PackSample, readPackHeader } from "./reader.ts";

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
 * Reads a pack once from beginning to end and holds it against the plan and against itself, as PackChecker does.
 * Returns the CRC-32C of the whole object.
 */
export async function checkPack(
  source: PackBytes,
  expected: PackExpectation,
  subject: string,
): Promise<number> {
  const checker = new PackChecker(source.bytes, expected, subject);
  for (let at = 0; at < source.bytes; ) {
    // The header first and alone: what is not ours is not read any further.
    const isHeader = at < checker.headerBytes;
    const endByte = isHeader ? checker.headerBytes : Math.min(source.bytes, at + source.sliceBytes);
    checker.add(await source.read(at, endByte));
    at = endByte;
  }
  return checker.finish();
}

/**
 * Holds the bytes of a pack against the plan and against themselves as they pass by: the header, every offset, every
 * sample's CRC-32C. They come in order and cut anywhere.
 * Throws RunError: exit identity for a sound header of another run, exit integrity for anything else that is not
 * exactly the planned pack.
 */
export class PackChecker {
  readonly #bytes: number;
  readonly #expected: PackExpectation;
  readonly #subject: string;
  /** Bytes that have passed. */
  #at = 0;
  /** Its 8 length bytes, then all of it. */
  #header = Buffer.alloc(8);
  /** null until the header has passed and was found good. */
  #samples: PackSample[] | null = null;
  /** How many samples have passed. */
  #done = 0;
  /** Of the sample that is passing. */
  #sampleCrc = 0;
  /** Of all that came before that sample. */
  #wholeCrc = 0;

  /** `bytes`: the size that was found, of a file or object named `subject`. */
  constructor(bytes: number, expected: PackExpectation, subject: string) {
    this.#bytes = bytes;
    this.#expected = expected;
    this.#subject = subject;
    if (bytes < 8) throw torn(subject, `expected ${expected.layout.bytes} bytes, found ${bytes}`);
  }

  /** Where the header ends; 8 until its own length has passed. */
  get headerBytes(): number {
    return this.#header.length;
  }

  /** The next bytes; none of them is kept. Throws as soon as they tell. */
  add(bytes: Uint8Array): void {
    for (let from = 0; from < bytes.length; ) {
      const before = this.#at;
      if (this.#samples) this.#addData(this.#samples, bytes.subarray(from));
      else this.#addHeader(bytes.subarray(from));
      from += this.#at - before;
    }
  }

  /** The CRC-32C of the whole, after its last byte. */
  finish(): number {
    if (this.#at !== this.#bytes || this.#samples?.length !== this.#done) {
      throw torn(this.#subject, `expected ${this.#bytes} bytes, they end after ${this.#at}`);
    }
    return this.#wholeCrc;
  }

  #addHeader(bytes: Uint8Array): void {
    const piece = bytes.subarray(0, this.#header.length - this.#at);
    this.#header.set(piece, this.#at);
    this.#at += piece.length;
    if (this.#at < this.#header.length) return;
    if (this.#at === 8) this.#makeRoom();
    else this.#samples = this.#readHeader();
  }

  /** The header claims its own length: never more than the planned one (or 1 MiB, another run's) is read by it. */
  #makeRoom(): void {
    const { layout } = this.#expected;
    const headerBytes = 8 + headerLength(this.#header, this.#subject, this.#bytes);
    if (headerBytes > Math.max(layout.headerBytes, 2 ** 20)) {
      throw torn(this.#subject, `the header claims ${headerBytes} bytes, expected ${layout.headerBytes}`);
    }
    this.#header = Buffer.concat([this.#header], headerBytes);
    if (headerBytes === 8) this.#samples = this.#readHeader();
  }

  #readHeader(): PackSample[] {
    const { layout, identity } = this.#expected;
    const pack = readPackHeader(this.#header, this.#subject, this.#bytes);
    const verdict = checkPackHeader(pack, layout, identity);
    if (verdict.kind === "other-identity") {
      throw new RunError({
        op: "check pack",
        subject: this.#subject,
        message: `expected a pack of run ${identity.slice(0, 16)}, found one of run ${verdict.found.slice(0, 16)}`,
        safe: "it was left as it is",
        hint: "use another address: this one holds a run with other weights, rows, taps or plan",
        exit: EXIT.identity,
      });
    }
    if (verdict.kind === "alien") throw torn(this.#subject, verdict.message);
    this.#wholeCrc = crc32c(this.#header);
    return pack.samples;
  }

  #addData(samples: PackSample[], bytes: Uint8Array): void {
    const sample = samples[this.#done];
    if (!sample) throw torn(this.#subject, `expected ${this.#bytes} bytes, found more`);
    const piece = bytes.subarray(0, sample.endByte - this.#at);
    this.#sampleCrc = crc32c(piece, this.#sampleCrc);
    this.#at += piece.length;
    if (this.#at < sample.endByte) return;
    if (this.#sampleCrc !== sample.crc32c) {
      throw torn(
        this.#subject,
        `row ${sample.row} should have the CRC-32C ${crcToHex(sample.crc32c)}, its bytes have ${crcToHex(this.#sampleCrc)}`,
      );
    }
    this.#wholeCrc = crc32cCombine(this.#wholeCrc, this.#sampleCrc, sample.endByte - sample.startByte);
    this.#sampleCrc = 0;
    this.#done += 1;
  }
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
