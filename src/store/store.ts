import type { ByteRange } from "../base/bytes.ts";
import { EXIT, type ExitCode, type Remedy, RunError } from "../base/errors.ts";

/** What a store says of one object. `null` means the store did not say; it never means zero. */
export interface ObjectInfo {
  key: string;
  bytes: number;
  /** Without the quotes. MD5 of the bytes only for single-part objects of servers that do so. */
  etag: string | null;
  /** CRC-32C as the store reports it (HEAD with checksum mode), never one that we claimed and it echoed unchecked. */
  crc32c: number | null;
  lastModifiedMs: number | null;
  /** The answer's own clock (its Date header; a directory's: this machine's), to judge ages by one clock. */
  serverDateMs: number | null;
}

export type PutOutcome =
  | { kind: "created"; etag: string | null }
  /** The key is taken (412). Says nothing about whose object it is: reliability table, invariant 4. */
  | { kind: "exists" };

export interface PutOptions {
  /** CRC-32C of the whole body, computed once by the caller; the store refuses other bytes. */
  crc32c: number;
  /** Never overwrite: `If-None-Match: *`, or `link` in a directory. */
  createOnly: boolean;
  /** MD5 of the body, 32 hex digits. Where wrong CRCs are not refused, the store may refuse wrong bytes by this one. */
  md5?: string;
  signal?: AbortSignal;
}

/** A body that is not in memory: it is handed over slice by slice while it is sent. */
export interface BodySource {
  readonly byteLength: number;
  /**
   * The bytes from the first one on: `byteLength` in all, or it throws, then no object is made and `put` rejects with
   * that very error. When a slice is asked for, the one before the last is no longer used: two buffers in turn do.
   * It must be quick (a cached file): the thread waits for it. After a failed `put` no slice is asked for any more.
   */
  slices(): Iterable<Uint8Array>;
}

/**
 * Objects under one run's prefix. Keys are relative to it ("packs/0a3/00000012.safetensors").
 * Every call makes one attempt, has a deadline of its own, and throws StoreError; who calls decides on retries.
 */
export interface Store {
  /** The run's address as a person types it: `s3://bucket/prefix/name` or `file:dir/name`. */
  readonly address: string;
  /** Of a store that is verified by its checksums, `body` may be a source. */
  put(key: string, body: Uint8Array | BodySource, options: PutOptions): Promise<PutOutcome>;
  /** null where there is no such object. */
  head(key: string, signal?: AbortSignal): Promise<ObjectInfo | null>;
  /** The bytes of the range (or all); null where there is no such object. Checks the length it got. */
  get(key: string, range: ByteRange | null, signal?: AbortSignal): Promise<Buffer | null>;
  /** Every object whose key begins with `prefix`, in no promised order. */
  list(prefix: string, signal?: AbortSignal): AsyncIterable<ObjectInfo>;
  /** Removing what is not there is no error. */
  delete(key: string, signal?: AbortSignal): Promise<void>;
  close(): void;
}

/** A store as openStore returns it, with what only whoever opened it needs. */
export interface OpenedStore extends Store {
  /** The names of the "folders" directly below `prefix` ("" or ending in "/"), without slashes. */
  folders(prefix: string, signal?: AbortSignal): AsyncIterable<string>;
  /** Throws where the bucket (or the directory) cannot be used, which a HEAD of one key leaves unsaid. */
  check(signal?: AbortSignal): Promise<void>;
  /** Reads the credentials anew from where they come from, after "credentials" or "denied". */
  reloadCredentials(): void;
}

export type StoreErrorKind =
  | "throttled"
  | "unavailable"
  | "timeout"
  | "unreachable"
  | "conflict"
  | "corrupt-answer"
  | "refused-checksum"
  | "credentials"
  | "denied"
  | "clock"
  | "no-bucket"
  | "not-a-store"
  | "unsupported"
  | "full"
  | "read-only"
  | "io";

export interface StoreErrorFields {
  kind: StoreErrorKind;
  op: string;
  subject: string;
  message: string;
  hint?: string;
  /** HTTP status, S3 code and request id: the allow-list of what may be logged about an answer. */
  status?: number;
  code?: string;
  requestId?: string;
  retryAfterMs?: number;
  cause?: unknown;
}

const RETRIED: ReadonlySet<StoreErrorKind> = new Set<StoreErrorKind>([
  "throttled",
  "unavailable",
  "timeout",
  "unreachable",
  "conflict",
  "corrupt-answer",
  "refused-checksum",
]);

/** One failed request. `remedy` is "retry" for what passes by itself, "stop" (state `blocked`) for what needs a person. */
export class StoreError extends RunError {
  readonly kind: StoreErrorKind;
  readonly status: number | undefined;
  readonly code: string | undefined;
  readonly requestId: string | undefined;
  readonly retryAfterMs: number | undefined;

  constructor(fields: StoreErrorFields) {
    const remedy: Remedy = RETRIED.has(fields.kind) ? "retry" : "stop";
    const exit: ExitCode = fields.kind === "full" || fields.kind === "read-only" ? EXIT.disk : EXIT.store;
    super({ ...fields, remedy, exit });
    this.name = "StoreError";
    this.kind = fields.kind;
    this.status = fields.status;
    this.code = fields.code;
    this.requestId = fields.requestId;
    this.retryAfterMs = fields.retryAfterMs;
  }
}

/** What the probe found out about a store by trying; shown, recorded, and never silently weaker. */
export interface StoreTraits {
  /** `overwrite`: the store ignores If-None-Match, so one writer only, HEAD before PUT. */
  publish: "create-only" | "overwrite";
  /** How a stored object is checked by a separate request: its own CRC, its MD5 ETag, or reading it back. */
  verify: "checksum" | "etag" | "readback";
  /** Whether a wrong checksum is refused at PUT. */
  refusesWrongChecksum: boolean;
  /** Sentences for a person: each trait that is weaker than the best, and what follows from it. */
  notes: string[];
}

/**
 * All that is needed to open the same store again in another thread or on another machine: plain, cloneable,
 * free of secrets (each thread reads the SDK's default credential chain itself).
 */
export type StoreSpec =
  | { kind: "directory"; directory: string; name: string }
  | {
      kind: "s3";
      bucket: string;
      /** Key prefix of the run, without slashes at the ends: "prefix/name". */
      prefix: string;
      endpoint: string | null;
      region: string;
      pathStyle: boolean;
      profile: string | null;
    };

export type S3Spec = Extract<StoreSpec, { kind: "s3" }>;
