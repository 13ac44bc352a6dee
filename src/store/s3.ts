import * as http from "node:http";
import * as https from "node:https";
import type { Readable } from "node:stream";
import {
  DeleteObjectCommand,
  HeadBucketCommand,
  HeadObjectCommand,
  ListObjectsV2Command,
  type ListObjectsV2CommandOutput,
  S3Client,
} from "@aws-sdk/client-s3";
import type { ByteRange } from "../base/bytes.ts";
import { crcFromBase64, crcToBase64 } from "../base/checksum.ts";
import { formatAddress } from "./address.ts";
import { checkKey } from "./keys.ts";
import { CredentialSource, type Credentials } from "./s3-credentials.ts";
import {
  corruptAnswer,
  errorOfAnswer,
  errorOfSdk,
  notAStore,
  type RequestFacts,
  readErrorBody,
  type S3Answer,
} from "./s3-errors.ts";
import { S3Wire, type WireAnswer, type WireLimits, type WireRequest, type WireTarget } from "./s3-wire.ts";
import {
  type ObjectInfo,
  type OpenedStore,
  type PutOptions,
  type PutOutcome,
  StoreError,
  type StoreSpec,
} from "./store.ts";

export type S3Spec = Extract<StoreSpec, { kind: "s3" }>;

export interface S3Options {
  /** Most connections at once; callers keep their own concurrency at or below it. Default 64. */
  sockets?: number;
  limits?: Partial<WireLimits>;
  /** The clock that requests are signed by. Default: this machine's. */
  nowMs?: () => number;
  /** For tests. Default: the SDK's own chain (environment, profiles, SSO, process, container, instance). */
  credentials?: () => Promise<Credentials>;
}

export const WIRE_LIMITS: WireLimits = {
  connectMs: 10_000,
  idleMs: 30_000,
  baseMs: 30_000,
  // At 180 connections this is 190 Mb/s in all: whoever is slower needs fewer connections, not more patience.
  bytesPerSecondMin: 128 * 1024,
};

/** The largest body that get(key, null) accepts: what one Buffer holds with room to spare. */
const GET_BYTES_MAX = 2 ** 31;

/**
 * A run's objects in a bucket. PUT, HEAD and GET go over S3Wire; LIST and DELETE, the credentials and the question
 * where a bucket is reached, over the SDK.
 */
export class S3Store implements OpenedStore {
  readonly address: string;
  readonly #spec: S3Spec;
  readonly #agent: http.Agent;
  readonly #client: S3Client;
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
    this.#client = this.#makeClient(isPlain);
  }

  async put(key: string, body: Uint8Array, options: PutOptions): Promise<PutOutcome> {
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
    const base = this.#spec.prefix === "" ? "" : `${this.#spec.prefix}/`;
    for await (const page of this.#pages(base + prefix, undefined, signal)) {
      for (const { Key, Size, ETag, LastModified } of page.Contents ?? []) {
        // A folder marker ("prefix/") is no object of ours, nor is what lies beside the prefix.
        if (Key === undefined || Size === undefined || !Key.startsWith(base) || Key.endsWith("/")) continue;
        yield {
          key: Key.slice(base.length),
          bytes: Size,
          etag: plainEtag(ETag),
          crc32c: null,
          lastModifiedMs: LastModified?.getTime() ?? null,
          serverDateMs: null,
        };
      }
    }
  }

  async *folders(prefix: string, signal?: AbortSignal): AsyncIterable<string> {
    const base = (this.#spec.prefix === "" ? "" : `${this.#spec.prefix}/`) + prefix;
    for await (const page of this.#pages(base, "/", signal)) {
      for (const { Prefix } of page.CommonPrefixes ?? []) {
        if (Prefix?.startsWith(base)) yield Prefix.slice(base.length).replace(/\/$/, "");
      }
    }
  }

  async delete(key: string, signal?: AbortSignal): Promise<void> {
    const facts = this.#facts("delete", key);
    const command = new DeleteObjectCommand({ Bucket: this.#spec.bucket, Key: this.#fullKey(key) });
    try {
      await this.#client.send(command, { abortSignal: this.#deadline(signal) });
    } catch (error) {
      const failure = this.#errorOfSdk(error, facts, signal);
      if (failure instanceof StoreError && failure.code === "NoSuchKey") return;
      throw failure;
    }
  }

  async check(signal?: AbortSignal): Promise<void> {
    const facts = this.#facts("look for bucket", "");
    try {
      await this.#client.send(new HeadBucketCommand({ Bucket: this.#spec.bucket }), {
        abortSignal: this.#deadline(signal),
      });
    } catch (error) {
      throw this.#errorOfSdk(error, facts, signal);
    }
  }

  reloadCredentials(): void {
    this.#credentials.reload();
  }

  close(): void {
    this.#client.destroy();
    this.#agent.destroy();
  }

  async *#pages(
    prefix: string,
    delimiter: string | undefined,
    signal?: AbortSignal,
  ): AsyncIterable<ListObjectsV2CommandOutput> {
    const facts: RequestFacts = {
      ...this.#facts("list", ""),
      subject: `s3://${this.#spec.bucket}/${prefix}`,
    };
    let token: string | undefined;
    do {
      facts.signedAtMs = this.#nowMs();
      const command = new ListObjectsV2Command({
        Bucket: this.#spec.bucket,
        Prefix: prefix,
        Delimiter: delimiter,
        ContinuationToken: token,
      });
      let page: ListObjectsV2CommandOutput;
      try {
        page = await this.#client.send(command, { abortSignal: this.#deadline(signal) });
      } catch (error) {
        throw this.#errorOfSdk(error, facts, signal);
      }
      // The SDK reads any other XML, such as an error sent with 200, as an empty list.
      if (page.IsTruncated === undefined && page.Name === undefined) {
        throw corruptAnswer(
          "expected a list of objects, found something else",
          facts,
          page.$metadata.httpStatusCode,
        );
      }
      yield page;
      const next = page.IsTruncated ? page.NextContinuationToken : undefined;
      if (page.IsTruncated && (next === undefined || next === token)) {
        throw corruptAnswer("the list says that it goes on, but not from where", facts);
      }
      token = next;
    } while (token !== undefined);
  }

  #makeClient(isPlain: boolean): S3Client {
    const { endpoint, region, pathStyle } = this.#spec;
    const client = new S3Client({
      ...(endpoint === null ? {} : { endpoint }),
      region,
      forcePathStyle: pathStyle,
      credentials: () => this.#credentials.get(),
      maxAttempts: 1,
      followRegionRedirects: false,
      ignoreConfiguredEndpointUrls: true,
      requestChecksumCalculation: "WHEN_REQUIRED",
      responseChecksumValidation: "WHEN_REQUIRED",
      // Else a PUT of 2 MiB opens a connection of its own and may stall for seconds.
      expectContinueHeader: false,
      systemClockOffset: this.#nowMs() - Date.now(),
      requestHandler: {
        ...(isPlain ? { httpAgent: this.#agent } : { httpsAgent: this.#agent as https.Agent }),
        connectionTimeout: this.#limits.connectMs,
        socketTimeout: this.#limits.idleMs,
      },
    });
    refuseWebPages(client);
    return client;
  }

  async #send(request: WireRequest): Promise<WireAnswer> {
    this.#wire ??= resolveTarget(this.#client, this.#spec.bucket).then(
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
      throw this.#errorOfSdk(error, request.facts, request.signal);
    }
    return wire.send(request);
  }

  #deadline(signal?: AbortSignal): AbortSignal {
    const own = AbortSignal.timeout(this.#limits.baseMs);
    return signal ? AbortSignal.any([signal, own]) : own;
  }

  #errorOfSdk(error: unknown, facts: RequestFacts, signal?: AbortSignal): unknown {
    // Not the SDK's habit of quietly believing the server's clock: a wrong one is reported each time.
    this.#client.config.systemClockOffset = this.#nowMs() - Date.now();
    if (signal?.aborted) return signal.reason;
    return errorOfSdk(error, facts);
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
    return this.#spec.prefix === "" ? key : `${this.#spec.prefix}/${key}`;
  }
}

/**
 * The SDK reads a web page sent with 200 as an empty list: nothing there, everything to be redone. This throws it as
 * an error with its answer before the SDK looks at the body.
 */
function refuseWebPages(client: S3Client): void {
  client.middlewareStack.add(
    (next) => async (args) => {
      const result = await next(args);
      const response = result.response as {
        statusCode: number;
        headers: Record<string, string>;
        body?: unknown;
      };
      if (response.statusCode < 300 && /^text\/html\b/.test(response.headers["content-type"] ?? "")) {
        (response.body as Readable | undefined)?.resume();
        throw Object.assign(new Error("a web page"), { $response: response });
      }
      return result;
    },
    // Nearest to the wire: sees the raw response.
    { step: "deserialize", priority: "low" },
  );
}

/** Asks the SDK where it would send a request for this bucket, without sending one. */
async function resolveTarget(client: S3Client, bucket: string): Promise<WireTarget> {
  const command = new HeadObjectCommand({ Bucket: bucket, Key: "key" });
  let target: WireTarget | null = null;
  command.middlewareStack.add(
    () => async (args) => {
      const { protocol, hostname, port, path } = args.request as WireTarget & { path: string };
      target = { protocol, hostname, port, basePath: path.slice(0, -"/key".length) };
      return { response: {}, output: { $metadata: {} } };
    },
    { step: "build", priority: "high" },
  );
  await client.send(command);
  return target!;
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
