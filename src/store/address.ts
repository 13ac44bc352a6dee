import { isIP } from "node:net";
import { EXIT, RunError } from "../base/errors.ts";
import type { StoreSpec } from "./store.ts";

export interface AddressOptions {
  /** URL of an S3-compatible server; null or absent means Amazon's own. */
  endpoint?: string | null;
  /** Default "us-east-1", which most lookalikes accept. */
  region?: string | null;
  /** Profile of the shared AWS config and credentials files. */
  profile?: string | null;
  /** `endpoint/bucket/key` instead of `bucket.endpoint/key`. Default: true for every custom endpoint. */
  pathStyle?: boolean | null;
}

const REGION_DEFAULT = "us-east-1";

/**
 * A run's address (`s3://bucket/prefix/name`, `file:dir/name`) as the spec to open it by.
 * Throws a usage error that says what was expected and what was found. Relative directories stay relative.
 */
export function parseAddress(address: string, options: AddressOptions = {}): StoreSpec {
  const spec = parseStoreAddress(address, options);
  const name = spec.kind === "directory" ? spec.name : spec.prefix;
  if (name === "") {
    throw bad(address, "names a store but no run in it", `add a name: ${address.replace(/\/+$/, "")}/my-run`);
  }
  return spec;
}

/** As parseAddress, but a whole store will do (`s3://bucket`, `file:dir`): for `ls`, `doctor` and the like. */
export function parseStoreAddress(address: string, options: AddressOptions = {}): StoreSpec {
  if (address.startsWith("s3://")) return parseS3(address, options);
  if (address.startsWith("file:")) return parseFile(address, options);
  const hint = address.includes("://")
    ? "addresses are s3://bucket/prefix/name or file:dir/name"
    : `did you mean file:${address}?`;
  throw bad(address, "begins neither with s3:// nor with file:", hint);
}

/** The address as a person types it; parseAddress of it gives the same spec, but for endpoint, region and profile. */
export function formatAddress(spec: StoreSpec): string {
  if (spec.kind === "directory") return `file:${joinPath(spec.directory, spec.name)}`;
  return spec.prefix === "" ? `s3://${spec.bucket}` : `s3://${spec.bucket}/${spec.prefix}`;
}

/** The spec of the run `name` directly inside the store `spec`. */
export function runInStore(spec: StoreSpec, name: string): StoreSpec {
  checkName(name, name, "run name");
  if (spec.kind === "directory") return { ...spec, directory: joinPath(spec.directory, spec.name), name };
  return { ...spec, prefix: joinPath(spec.prefix, name) };
}

/** What the SDK's own variables say about where the store is; flags and the config file come before it. */
export function storeOptionsFromEnv(env: Record<string, string | undefined>): AddressOptions {
  const ignoresEndpoint = env.AWS_IGNORE_CONFIGURED_ENDPOINT_URLS === "true";
  return {
    endpoint: ignoresEndpoint ? null : env.AWS_ENDPOINT_URL_S3 || env.AWS_ENDPOINT_URL || null,
    region: env.AWS_REGION || env.AWS_DEFAULT_REGION || null,
    profile: env.AWS_PROFILE || null,
  };
}

/**
 * An endpoint as an origin with an optional path, without a slash at its end.
 * Throws a usage error for anything but http(s), for credentials, queries and fragments in it, and for link-local and
 * metadata addresses: a store there could only be someone else's credentials service.
 */
export function checkEndpoint(endpoint: string): string {
  const url = URL.canParse(endpoint) ? new URL(endpoint) : null;
  if (url && (url.username || url.password)) {
    throw badEndpoint(redact(url), "must not hold credentials; they come from the AWS variables or profiles");
  }
  if (!url || !/^https?:$/.test(url.protocol)) {
    throw badEndpoint(endpoint, "expected a URL such as https://s3.example.com or http://127.0.0.1:9000");
  }
  if (url.search || url.hash) throw badEndpoint(endpoint, "must not have a query or a fragment");
  if (isMetadataHost(url.hostname)) {
    throw badEndpoint(endpoint, "is a link-local or metadata address, which no store has");
  }
  return url.origin + url.pathname.replace(/\/+$/, "");
}

function parseS3(address: string, options: AddressOptions): StoreSpec {
  const rest = address.slice("s3://".length).replace(/\/+$/, "");
  if (/[?#]/.test(rest))
    throw bad(address, "has a query or a fragment", "endpoint, region and profile are flags");
  const [bucket = "", ...segments] = rest.split("/");
  if (!/^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$/.test(bucket) || bucket.includes("..") || isIP(bucket)) {
    throw bad(
      address,
      `expected a bucket name after s3:// (3-63 of a-z, 0-9, "-", "."), found "${bucket}"`,
      "s3://bucket/prefix/name",
    );
  }
  for (const segment of segments) checkName(segment, address, "part of the address");
  const prefix = segments.join("/");
  if (prefix.length > PREFIX_CHARS_MAX) throw bad(address, `is longer than ${PREFIX_CHARS_MAX} characters`);
  const endpoint = options.endpoint ? checkEndpoint(options.endpoint) : null;
  const region = options.region || REGION_DEFAULT;
  if (!/^[A-Za-z0-9][A-Za-z0-9-]{0,62}$/.test(region)) {
    throw bad(region, "is not a region name", "such as us-east-1 or auto");
  }
  return {
    kind: "s3",
    bucket,
    prefix,
    endpoint,
    region,
    pathStyle: options.pathStyle ?? endpoint !== null,
    profile: options.profile || null,
  };
}

/** Keys may have 1,024 bytes; the longest of our own needs less than 500. */
const PREFIX_CHARS_MAX = 512;

function parseFile(address: string, options: AddressOptions): StoreSpec {
  if (options.endpoint) {
    throw bad(
      address,
      `is a directory, but an endpoint was given (${options.endpoint})`,
      "drop --endpoint, or use s3://",
    );
  }
  const path = address.slice("file:".length);
  if (path.startsWith("//") && !path.startsWith("///")) {
    throw bad(address, "names a host", `file:${path.slice(2)} is relative, file:/${path.slice(2)} absolute`);
  }
  // biome-ignore lint/suspicious/noControlCharactersInRegex: refusing them is the point
  if (/[\u0000-\u001f]/.test(path)) throw bad(address, "holds control characters");
  const clean = path.replace(/\/{2,}/g, "/").replace(/(?<=.)\/$/, "");
  if (clean === "") throw bad(address, "names no directory", "file:dir/name");
  const slash = clean.lastIndexOf("/");
  const name = clean.slice(slash + 1);
  // A bare `file:dir` is a store; its last segment is a directory, and there is no run in it yet.
  if (slash < 0 || name === "" || name === "." || name === "..")
    return { kind: "directory", directory: clean, name: "" };
  checkName(name, address, "run name");
  return { kind: "directory", directory: slash === 0 ? "/" : clean.slice(0, slash), name };
}

function checkName(name: string, address: string, what: string): void {
  if (/^[A-Za-z0-9_][A-Za-z0-9._=+@-]{0,127}$/.test(name)) return;
  const found = name === "" ? "an empty one" : `"${name}"`;
  throw bad(
    address,
    `expected each ${what} to be of letters, digits and ". _ = + @ -" (no "." first, at most 128), found ${found}`,
  );
}

/** `URL` has already normalised decimal, octal and hex forms of IPv4 to dotted ones, and IPv6 to its shortest. */
function isMetadataHost(hostname: string): boolean {
  const host = hostname.replace(/^\[|\]$/g, "").toLowerCase();
  if (isIP(host) === 4) return host.startsWith("169.254.");
  if (isIP(host) === 6) return /^fe[89ab]|^fd00:ec2:|^::ffff:a9fe:/.test(host);
  return /^(metadata|metadata\.google\.internal|instance-data)\.?$/.test(host);
}

function joinPath(head: string, tail: string): string {
  if (head === "" || tail === "") return head + tail;
  return head.endsWith("/") ? head + tail : `${head}/${tail}`;
}

function redact(url: URL): string {
  return `${url.protocol}//***@${url.host}`;
}

function bad(address: string, message: string, hint?: string): RunError {
  return new RunError({ op: "read address", subject: address, message, hint, exit: EXIT.usage });
}

function badEndpoint(endpoint: string, message: string): RunError {
  return new RunError({
    op: "read endpoint",
    subject: endpoint,
    message,
    hint: "--endpoint URL of the S3-compatible server",
    exit: EXIT.usage,
  });
}
