import { closeSync, constants, fstatSync, openSync } from "node:fs";
import { crcToHex } from "../base/checksum.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { readExactlySync } from "../base/read-exactly.ts";
import { PackChecker, type PackExpectation } from "../pack/check.ts";
import type { BodySource, StoreTraits } from "../store/store.ts";

/** Small enough that its bytes are still in the processor's cache when they are hashed and sent. */
const SLICE_BYTES = 512 * 1024;
/** Two slices in turn. */
const BUFFER_BYTES = 2 * SLICE_BYTES;

export interface FileBodyOptions {
  /** The file in ready/. */
  path: string;
  expected: PackExpectation;
  /** Of the whole file, as it was made or last checked. */
  crc32c: number;
  /** Holds two slices. */
  buffer: Buffer;
  /** Told after each slice, the failed one included. */
  onRead: (seconds: number) => void;
  /** Monotonic, ms. */
  nowMs: () => number;
}

/**
 * A spool file on its way to the store, read and checked while it is sent: a slice is handed over only after its
 * bytes were checked, and the last one only after the whole was, so a spoiled file never becomes an object.
 */
export class FileBody implements BodySource {
  readonly byteLength: number;
  /** Why the file is not the pack that was made, once that was found; or null. */
  spoiled: string | null = null;
  readonly #options: FileBodyOptions;
  readonly #fd: number;

  /** Opens the file; whoever makes it closes it. Throws the system's error. */
  constructor(options: FileBodyOptions) {
    this.#options = options;
    this.byteLength = options.expected.layout.bytes;
    this.#fd = openSync(options.path, constants.O_RDONLY | constants.O_NOFOLLOW);
  }

  *slices(): Generator<Uint8Array> {
    const { buffer, path, expected, onRead, nowMs } = this.#options;
    const checker = new PackChecker(this.byteLength, expected, path);
    const sliceBytes = Math.min(SLICE_BYTES, Math.floor(buffer.length / 2));
    const halves = [buffer.subarray(0, sliceBytes), buffer.subarray(sliceBytes, 2 * sliceBytes)];
    for (let at = 0, turn = 0; at < this.byteLength; at += sliceBytes, turn = 1 - turn) {
      const slice = halves[turn]!.subarray(0, this.byteLength - at);
      const startMs = nowMs();
      try {
        if (at === 0) checkSize(this.#fd, this.byteLength, path);
        checker.add(readExactlySync(this.#fd, slice, { startByte: at, path }));
        if (at + slice.length === this.byteLength) this.#compare(checker.finish());
      } catch (error) {
        this.spoiled = whySpoiled(error);
        throw error;
      } finally {
        onRead((nowMs() - startMs) / 1000);
      }
      yield slice;
    }
  }

  close(): void {
    closeSync(this.#fd);
  }

  /** A whole pack, but not the one that was made: the store is told the CRC of that one. */
  #compare(crc: number): void {
    const { crc32c, path } = this.#options;
    if (crc === crc32c) return;
    throw spoiled(
      path,
      `the file should have the CRC-32C ${crcToHex(crc32c)}, its bytes have ${crcToHex(crc)}`,
    );
  }
}

/**
 * Whether a pack is read while it is sent, or before. While: its CRC is known, the store refuses other bytes than
 * those, and a separate request tells what it has. Else a spoiled file would be found too late, or not at all.
 */
export function isStreamed(crc32c: number | null, traits: StoreTraits): crc32c is number {
  return crc32c !== null && traits.verify === "checksum" && traits.refusesWrongChecksum;
}

/** What an attempt at a pack of `packBytes` needs as its buffer. */
export function bufferBytes(packBytes: number, streamed: boolean): number {
  return streamed ? Math.min(BUFFER_BYTES, Math.max(packBytes, 2)) : packBytes;
}

/** Throws (integrity) where the open file has another size. */
export function checkSize(fd: number, bytes: number, subject: string): void {
  const found = fstatSync(fd).size;
  if (found !== bytes) throw spoiled(subject, `expected ${bytes} bytes, found ${found}`);
}

/** The words of an error that says of a spool file that it is not the planned pack; null for any other failure. */
export function whySpoiled(error: unknown): string | null {
  const tells = error instanceof RunError && (error.exit === EXIT.integrity || error.exit === EXIT.identity);
  return tells ? error.message : null;
}

function spoiled(subject: string, message: string): RunError {
  return new RunError({ op: "read spool file", subject, message, exit: EXIT.integrity });
}
