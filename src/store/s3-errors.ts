import { errnoOf } from "../base/errors.ts";
import { plainText } from "../base/log.ts";
import { StoreError, type StoreErrorFields, type StoreErrorKind } from "./store.ts";

/** What an S3 server answered, reduced to what tells failures apart. */
export interface S3Answer {
  status: number;
  headers: Record<string, string | undefined>;
  /** S3's error code and message, from the XML body where there was one. */
  code: string | null;
  message: string | null;
  /** The body was a web page, not S3's XML. */
  isHtml: boolean;
}

export interface RequestFacts {
  op: string;
  /** The address of what was asked for: `s3://bucket/prefix/name/key`. */
  subject: string;
  endpoint: string;
  bucket: string;
  /** When the request was signed, by this machine's clock. */
  signedAtMs: number;
}

/** S3 refuses requests signed more than 15 minutes off its own clock. */
const SKEW_MS_MAX = 15 * 60_000;

/** A refusal as a StoreError: what it means, whether to try again, and what a person can do about it. */
export function errorOfAnswer(answer: S3Answer, request: RequestFacts): StoreError {
  const verdict = judge(answer, request);
  const code = answer.code ? plainText(answer.code, 100) : undefined;
  const said = [`HTTP ${answer.status}`, code, answer.message && plainText(answer.message, 300)];
  return new StoreError({
    op: request.op,
    subject: request.subject,
    kind: verdict.kind,
    message: `${verdict.message} (${said.filter(Boolean).join(", ")})`,
    hint: verdict.hint,
    status: answer.status,
    code,
    requestId: answer.headers["x-amz-request-id"],
    retryAfterMs: retryAfterMs(answer.headers["retry-after"], Date.parse(answer.headers.date ?? "")),
  });
}

/** A failure before any answer: no connection, a broken one, no credentials, a deadline. */
export function errorOfTransport(cause: unknown, request: RequestFacts): StoreError {
  const { kind, message, hint } = judgeTransport(cause, request);
  return new StoreError({ op: request.op, subject: request.subject, kind, message, hint, cause });
}

/** An answer that is not what S3 promises (a length, a header, a body), seen by us and not by the server. */
export function corruptAnswer(message: string, request: RequestFacts, status?: number): StoreError {
  return new StoreError({
    op: request.op,
    subject: request.subject,
    kind: "corrupt-answer",
    message,
    hint: "a proxy between here and the store may be damaging answers",
    status,
  });
}

export function notAStore(request: RequestFacts, status: number): StoreError {
  return errorOfAnswer({ status, headers: {}, code: null, message: null, isHtml: true }, request);
}

type Verdict = Pick<StoreErrorFields, "kind" | "message" | "hint">;

const CODES: Record<string, StoreErrorKind> = {
  SlowDown: "throttled",
  SlowDownRead: "throttled",
  SlowDownWrite: "throttled",
  TooManyRequests: "throttled",
  RequestLimitExceeded: "throttled",
  Throttling: "throttled",
  ThrottlingException: "throttled",
  BandwidthLimitExceeded: "throttled",
  InternalError: "unavailable",
  ServiceUnavailable: "unavailable",
  OperationAborted: "conflict",
  ConditionalRequestConflict: "conflict",
  RequestTimeout: "timeout",
  IncompleteBody: "refused-checksum",
  BadDigest: "refused-checksum",
  InvalidDigest: "refused-checksum",
  XAmzContentChecksumMismatch: "refused-checksum",
  XAmzContentSHA256Mismatch: "refused-checksum",
  RequestTimeTooSkewed: "clock",
  RequestExpired: "clock",
  InvalidAccessKeyId: "credentials",
  SignatureDoesNotMatch: "credentials",
  ExpiredToken: "credentials",
  ExpiredTokenException: "credentials",
  InvalidToken: "credentials",
  TokenRefreshRequired: "credentials",
  AuthorizationHeaderMalformed: "credentials",
  AccountProblem: "denied",
  AllAccessDisabled: "denied",
  AccessDenied: "denied",
  NoSuchBucket: "no-bucket",
  PermanentRedirect: "no-bucket",
  NotImplemented: "unsupported",
  XMinioStorageFull: "full",
  QuotaExceeded: "full",
  InsufficientStorage: "full",
};

function judge(answer: S3Answer, request: RequestFacts): Verdict {
  const kind = kindOf(answer, request);
  switch (kind) {
    case "throttled":
      return { kind, message: "the store asks to slow down" };
    case "unavailable":
      return { kind, message: "the store is failing for now" };
    case "timeout":
      return { kind, message: "the store gave up waiting for the request's bytes" };
    case "conflict":
      return { kind, message: "another request is changing the same key" };
    case "refused-checksum":
      return { kind, message: "the store received other bytes than were sent" };
    case "clock":
      return {
        kind,
        message: clockMessage(answer, request),
        hint: "set this machine's clock (NTP), then try again",
      };
    case "credentials":
      return {
        kind,
        message: "the store does not accept the credentials",
        hint: "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or --profile, and that they belong to this endpoint",
      };
    case "denied":
      return {
        kind,
        // A HEAD's refusal has no body to tell wrong credentials from missing permissions.
        message: answer.code
          ? "the store denies this"
          : "the store denies this, or does not know the credentials",
        hint: `${answer.code ? "the credentials" : "check AWS_ACCESS_KEY_ID or --profile; they"} need s3:GetObject, PutObject, DeleteObject and ListBucket on "${request.bucket}"`,
      };
    case "no-bucket":
      return noBucket(answer, request);
    case "not-a-store":
      return {
        kind,
        message: `expected an S3 server at ${request.endpoint}, found one that answers with a web page`,
        hint: "check --endpoint: the S3 port or host, not the console's",
      };
    case "full":
      return {
        kind,
        message: "the store is full",
        hint: "make room or raise its quota; the run goes on by itself",
      };
    case "unsupported":
      return { kind, message: "the store does not implement this" };
    default:
      return { kind, message: "the store refused the request" };
  }
}

function kindOf(answer: S3Answer, request: RequestFacts): StoreErrorKind {
  const { status, code } = answer;
  // A proxy's own error page (502, 503) is a store in trouble, not a wrong address.
  if (answer.isHtml && status < 500) return "not-a-store";
  const known = code ? CODES[code] : undefined;
  if (known && known !== "credentials" && known !== "denied") return known;
  if (status === 401 || status === 403 || known) {
    // Some servers call a wrong clock a wrong signature, and a HEAD's refusal says nothing at all.
    if (Math.abs(skewMs(answer, request)) > SKEW_MS_MAX) return "clock";
    return known ?? (status === 401 ? "credentials" : "denied");
  }
  if (status === 429) return "throttled";
  if (status === 409) return "conflict";
  if (status === 408) return "timeout";
  if (status === 501) return "unsupported";
  if (status === 507) return "full";
  if (status >= 300 && status < 400) return "no-bucket";
  if (status === 404) return "no-bucket";
  if (status >= 500) return "unavailable";
  return status < 300 ? "corrupt-answer" : "unsupported";
}

function noBucket(answer: S3Answer, request: RequestFacts): Verdict {
  const region = answer.headers["x-amz-bucket-region"];
  if (answer.status >= 300 && answer.status < 400) {
    const where = region
      ? `is in region ${plainText(region, 40)}`
      : "is elsewhere; redirects are not followed";
    return {
      kind: "no-bucket",
      message: `bucket "${request.bucket}" ${where}`,
      hint: "give --region or --endpoint",
    };
  }
  return {
    kind: "no-bucket",
    message: `there is no bucket "${request.bucket}" at ${request.endpoint}`,
    hint: "create it, or check its name and --endpoint; Forebay makes no buckets",
  };
}

/** How far the signature's time was ahead of the server's clock; 0 where the server named no time. */
function skewMs(answer: S3Answer, request: RequestFacts): number {
  const serverMs = Date.parse(answer.headers.date ?? "");
  return Number.isNaN(serverMs) ? 0 : request.signedAtMs - serverMs;
}

function clockMessage(answer: S3Answer, request: RequestFacts): string {
  const minutes = Math.round(skewMs(answer, request) / 60_000);
  if (minutes === 0) return "this machine's clock differs from the store's";
  return `this machine's clock is ${Math.abs(minutes)} minutes ${minutes > 0 ? "ahead of" : "behind"} the store's`;
}

/** `Retry-After` in ms: seconds, or a date judged by the answer's own clock. */
function retryAfterMs(header: string | undefined, serverDateMs: number): number | undefined {
  if (header === undefined) return undefined;
  if (/^\d{1,7}$/.test(header.trim())) return Number(header) * 1000;
  const waitMs = Date.parse(header) - serverDateMs;
  return Number.isNaN(waitMs) ? undefined : Math.max(0, waitMs);
}

function judgeTransport(cause: unknown, request: RequestFacts): Verdict {
  const { endpoint } = request;
  const code = errnoOf(cause) ?? "";
  const name = cause instanceof Error ? cause.name : "";
  if (name === "CredentialsProviderError" || name === "TokenProviderError") {
    return {
      kind: "credentials",
      message: "found no credentials for the store",
      hint: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile with --profile",
    };
  }
  if (name === "TimeoutError" || code === "ETIMEDOUT") {
    return { kind: "timeout", message: `the store at ${endpoint} did not answer in time` };
  }
  if (code === "ENOTFOUND" || code === "EAI_AGAIN") {
    return {
      kind: "unreachable",
      message: `found no address for the host of ${endpoint}`,
      hint: "check --endpoint and DNS",
    };
  }
  if (code === "ECONNREFUSED") {
    return {
      kind: "unreachable",
      message: `nothing listens at ${endpoint}`,
      hint: "check --endpoint, and that the server runs",
    };
  }
  if (code === "EMFILE" || code === "ENFILE") {
    return {
      kind: "unavailable",
      message: "no file descriptor left for a connection",
      hint: "raise ulimit -n",
    };
  }
  if (/^(CERT_|DEPTH_ZERO|SELF_SIGNED|UNABLE_TO_|ERR_TLS_|ERR_SSL_|EPROTO)/.test(code)) {
    return {
      kind: "not-a-store",
      message: `cannot speak to ${endpoint} (${code})`,
      hint: "check http or https in --endpoint; a private certificate authority goes into NODE_EXTRA_CA_CERTS",
    };
  }
  if (code.startsWith("HPE_")) {
    return { kind: "corrupt-answer", message: `${endpoint} answered something other than HTTP (${code})` };
  }
  return { kind: "unreachable", message: `the connection to ${endpoint} broke${code ? ` (${code})` : ""}` };
}

/** `<Error><Code>..</Code><Message>..</Message>` of a small body, or nulls; never trusted further than this. */
export function readErrorBody(body: string): Pick<S3Answer, "code" | "message" | "isHtml"> {
  const isHtml = /^\s*(<!doctype html|<html)/i.test(body);
  const inside = /<Error\b[^>]*>([\s\S]*)/.exec(body)?.[1];
  const field = (name: string) => new RegExp(`<${name}>([^<]*)</${name}>`).exec(inside ?? "")?.[1] ?? null;
  return { code: field("Code"), message: field("Message"), isHtml };
}
