import * as http from "node:http";
import * as https from "node:https";
import type { ByteRange } from "../base/bytes.ts";
import { crcFromBase64, crcToBase64 } from "../base/checksum.ts";
import { formatAddress } from "./address.ts";
import { checkKey } from "./keys.ts";
import { CredentialSource, type Credentials } from "./s3-credentials.ts";
import {
  corruptAnswer,
  errorOfAnswer,
  errorOfTransport,
  notAStore,
  type RequestFacts,
  readErrorBody,
  type S3Answer,
} from "./s3-errors.ts";
import { LIST_BYTES_MAX, type ListPage, readListPage } from "./s3-list.ts";
import { resolveTarget } from "./s3-target.ts";
import { S3Wire, type WireAnswer, type WireLimits, type WireRequest } from "./s3-wire.ts";
import type { BodySource, ObjectInfo, OpenedStore, PutOptions, PutOutcome, S3Spec } from "./store.ts";

export interface S3Options {
  /** Most connections at once; callers keep their own concurrency at or below it. Default 64. */
  sockets?: number;
  limits?: Partial<WireLimits>;
  /** The clock that requests are signed by. Default: this machine's. */
  nowMs?: () => number;
  /** For tests. Default: the SDK's own chain (environment, profiles, SSO, process, container, instance). */
  credentials?: () => Promise<Credentials>;
}

const WIRE_LIMITS: WireLimits = {
  connectMs: 10_000,
  idleMs: 30_000,
  baseMs: 30_000,
  // At 180 connections this is 190 Mb/s in all: whoever is slower needs fewer connections, not more patience.
  bytesPerSecondMin: 128 * 1024,
};

/** The largest body that get(key, null) accepts: what one Buffer holds with room to spare. */
const GET_BYTES_MAX = 2 ** 31;

/**
 * A run's objects in a bucket. All requests go over S3Wire; from the SDK come the credentials and the rules of where
 * a bucket is reached, which are many.
 */
export class S3Store implements OpenedStore {
  readonly address: string;
  readonly #spec: S3Spec;
  readonly #agent: http.Agent;
  readonly #limits: WireLimits;
  readonly #nowMs: () => number;
  readonly #credentials: CredentialSource;
  #wire: Promise<S3Wire> | null = null;

  constructor(spec: S3Spec, options: S3Options = {}) {
    this.address = formatAddress(spec);
    this.#spec = spec;
    this.#limits = { ...WIRE_LIMITS, ...options.limits };
    this.#nowMs = options.nowMs ?? Date.now;
    this.#credentials = new CredentialSource(spec.profile, options.credentials);
    // lifo: with fewer requests than sockets, the idle ones are left to close rather than each kept half warm.
    const agentOptions = { keepAlive: true, maxSockets: options.sockets ?? 64, scheduling: "lifo" as const };
    const isPlain = spec.endpoint?.startsWith("http:") ?? false;
    this.#agent = isPlain ? new http.Agent(agentOptions) : new https.Agent(agentOptions);
  }

  async put(key: string, body: Uint8Array | BodySource, options: PutOptions): Promise<PutOutcome> {
    const facts = this.#facts("put", key);
    const headers: Record<string, string> = {
      "content-type": "application/octet-stream",
      "x-amz-checksum-crc32c": crcToBase64(options.crc32c),
    };
    if (options.md5) headers["content-md5"] = Buffer.from(options.md5, "hex").toString("base64");
    if (options.createOnly) headers["if-none-match"] = "*";
    const answer = await this.#send({
      method: "PUT",
      key: this.#fullKey(key),
      headers,
      body,
      signal: options.signal,
      facts,
    });
    if (answer.status === 412) return { kind: "exists" };
    if (answer.status !== 200 || answer.body.length > 0) {
      const failure = readAnswer(answer);
      // S3 may begin with 200 and find out later; anything but silence is looked at.
      if (answer.status !== 200 || failure.code || failure.isHtml) throw errorOfAnswer(failure, facts);
    }
    return { kind: "created", etag: plainEtag(answer.headers.etag) };
  }

  async head(key: string, signal?: AbortSignal): Promise<ObjectInfo | null> {
    const facts = this.#facts("head", key);
    const answer = await this.#send({
      method: "HEAD",
      key: this.#fullKey(key),
      headers: { "x-amz-checksum-mode": "ENABLED" },
      signal,
      facts,
    });
    if (answer.status === 404 && !isHtml(answer)) return null;
    if (answer.status !== 200) throw errorOfAnswer(readAnswer(answer), facts);
    const bytes = Number(answer.headers["content-length"] ?? Number.NaN);
    if (isHtml(answer) && answer.headers.etag === undefined) throw notAStore(facts, answer.status);
    if (!Number.isSafeInteger(bytes)) throw corruptAnswer("HEAD named no size", facts, answer.status);
    const crc = crcFromBase64(answer.headers["x-amz-checksum-crc32c"] ?? "");
    return {
      key,
      bytes,
      etag: plainEtag(answer.headers.etag),
      crc32c: Number.isNaN(crc) || isComposite(answer) ? null : crc,
      lastModifiedMs: dateOrNull(answer.headers["last-modified"]),
      serverDateMs: dateOrNull(answer.headers.date),
    };
  }

  async get(key: string, range: ByteRange | null, signal?: AbortSignal): Promise<Buffer | null> {
    if (range && range.endByte <= range.startByte) return (await this.head(key, signal)) && Buffer.alloc(0);
    const facts = this.#facts("get", key);
    const wanted = range ? range.endByte - range.startByte : null;
    const answer = await this.#send({
      method: "GET",
      key: this.#fullKey(key),
      headers: range ? { range: `bytes=${range.startByte}-${range.endByte - 1}` } : {},
      // One more would do; a whole object sent instead of a range is worth its own message, but not its traffic.
      answerBytesMax: wanted ?? GET_BYTES_MAX,
      signal,
      facts,
    });
    if (answer.status === 200 || answer.status === 206) {
      if (wanted !== null) checkRange(answer, range!, facts);
      if (isHtml(answer) && answer.headers.etag === undefined) throw notAStore(facts, answer.status);
      return answer.body;
    }
    const failure = readAnswer(answer);
    if (answer.status === 404 && failure.code !== "NoSuchBucket" && !failure.isHtml) return null;
    if (answer.status === 416) {
      throw corruptAnswer(`the object ends before byte ${range?.startByte ?? 0}`, facts, answer.status);
    }
    throw errorOfAnswer(failure, facts);
  }

  async *list(prefix: string, signal?: AbortSignal): AsyncIterable<ObjectInfo> {
    const base = this.#basePrefix();
    for await (const page of this.#pages({ prefix: base + prefix }, signal)) {
      for (const { key, bytes, etag, lastModifiedMs } of page.objects) {
        // A folder marker ("prefix/") is no object of ours, nor is what lies beside the prefix.
        if (!key.startsWith(base) || key.endsWith("/")) continue;
        yield {
          key: key.slice(base.length),
          bytes,
          etag: etag && plainEtag(etag),
          crc32c: null,
          lastModifiedMs,
          serverDateMs: null,
        };
      }
    }
  }

  async *folders(prefix: string, signal?: AbortSignal): AsyncIterable<string> {
    const base = this.#basePrefix() + prefix;
    for await (const page of this.#pages({ prefix: base, delimiter: "/" }, signal)) {
      for (const folder of page.prefixes) {
        if (folder.startsWith(base)) yield folder.slice(base.length).replace(/\/$/, "");
      }
    }
  }

  async delete(key: string, signal?: AbortSignal): Promise<void> {
    const facts = this.#facts("delete", key);
    const answer = await this.#send({ method: "DELETE", key: this.#fullKey(key), signal, facts });
    const failure = readAnswer(answer);
    const isGone = answer.status === 404 && failure.code !== "NoSuchBucket" && !failure.isHtml;
    if (!isGone && (answer.status >= 300 || failure.isHtml)) throw errorOfAnswer(failure, facts);
  }

  async check(signal?: AbortSignal): Promise<void> {
    // A list of one: unlike HEAD of the bucket, it says in its body what is wrong, and needs no permission of its own.
    const query = { prefix: this.#basePrefix(), "max-keys": "1" };
    for await (const _ of this.#pages(query, signal)) return;
  }

  reloadCredentials(): void {
    this.#credentials.reload();
  }

  close(): void {
    this.#agent.destroy();
  }

  async *#pages(query: Record<string, string>, signal?: AbortSignal): AsyncIterable<ListPage> {
    let token: string | null = null;
    do {
      const facts = { ...this.#facts("list", ""), subject: `s3://${this.#spec.bucket}/${query.prefix}` };
      const answer: WireAnswer = await this.#send({
        method: "GET",
        key: null,
        query: { "list-type": "2", ...query, ...(token === null ? {} : { "continuation-token": token }) },
        answerBytesMax: LIST_BYTES_MAX,
        signal,
        facts,
      });
      const page: ListPage | null = answer.status === 200 ? readListPage(answer.body.toString("utf8")) : null;
      if (!page) {
        const failure = readAnswer(answer);
        if (answer.status !== 200 || failure.code || failure.isHtml) throw errorOfAnswer(failure, facts);
        throw corruptAnswer(
          "expected a list of objects, found something else or half of one",
          facts,
          answer.status,
        );
      }
      if (page.next !== null && page.next === token) {
        throw corruptAnswer("the list says that it goes on from where it began", facts);
      }
      yield page;
      token = page.next;
    } while (token !== null);
  }

  async #send(request: WireRequest): Promise<WireAnswer> {
    this.#wire ??= resolveTarget(this.#spec, () => this.#credentials.get()).then(
      (target) =>
        new S3Wire({
          target,
          region: this.#spec.region,
          credentials: () => this.#credentials.get(),
          agent: this.#agent,
          limits: this.#limits,
          nowMs: this.#nowMs,
        }),
    );
    let wire: S3Wire;
    try {
      wire = await this.#wire;
    } catch (error) {
      // Not for ever: credentials may appear.
      this.#wire = null;
      throw errorOfTransport(error, request.facts);
    }
    return wire.send(request);
  }

  #facts(op: string, key: string): RequestFacts {
    return {
      op: `${op} object`,
      subject: key === "" ? this.address : `${this.address}/${key}`,
      endpoint: this.#spec.endpoint ?? `the S3 endpoint of ${this.#spec.region}`,
      bucket: this.#spec.bucket,
      signedAtMs: this.#nowMs(),
    };
  }

  #fullKey(key: string): string {
    checkKey(key, this.address);
    return this.#basePrefix() + key;
  }

  #basePrefix(): string {
    return this.#spec.prefix === "" ? "" : `${this.#spec.prefix}/`;
  }
}

function readAnswer(answer: WireAnswer): S3Answer {
  const { code, message, isHtml: bodyIsHtml } = readErrorBody(answer.body.toString("utf8"));
  return { ...answer, code, message, isHtml: bodyIsHtml || isHtml(answer) };
}

function isHtml(answer: WireAnswer): boolean {
  return /^text\/html\b/.test(answer.headers["content-type"] ?? "");
}

/** A multipart object's checksum is a checksum of checksums ("...-3", type COMPOSITE): not of the bytes. */
function isComposite(answer: WireAnswer): boolean {
  return (
    answer.headers["x-amz-checksum-type"] === "COMPOSITE" ||
    (answer.headers["x-amz-checksum-crc32c"] ?? "").includes("-")
  );
}

/** Servers may answer a range with 200 (rclone), so the length and Content-Range count, not the status. */
function checkRange(answer: WireAnswer, range: ByteRange, facts: RequestFacts): void {
  const wanted = range.endByte - range.startByte;
  const said = /^bytes (\d+)-(\d+)\//.exec(answer.headers["content-range"] ?? "");
  const isRange = said ? Number(said[1]) === range.startByte : range.startByte === 0;
  if (!isRange || answer.body.length !== wanted) {
    const found = said ? `bytes ${said[1]}-${said[2]}` : `${answer.body.length} bytes without Content-Range`;
    throw corruptAnswer(`expected bytes ${range.startByte}-${range.endByte - 1}, found ${found}`, facts);
  }
}

function plainEtag(etag: string | undefined): string | null {
  return etag === undefined ? null : etag.replace(/^W\//, "").replace(/"/g, "");
}

function dateOrNull(header: string | undefined): number | null {
  const ms = Date.parse(header ?? "");
  return Number.isNaN(ms) ? null : ms;
}
