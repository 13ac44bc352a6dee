import type { IncomingHttpHeaders } from "node:http";

/** Why a request is turned away before any route sees it; also what its answer says. */
export interface Refusal {
  status: 400 | 403 | 404 | 405 | 413;
  message: string;
  allow?: string;
}

/** Room for every query the page sends, many times over. */
const TARGET_CHARS_MAX = 2_048;

/**
 * A name of this very machine, with any port (a laptop looks through `ssh -L` with a port of its own). Anything
 * else in Host is a page of another site whose name was rebound to 127.0.0.1.
 */
const LOOPBACK_HOST = /^(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?$/i;

/**
 * The monitor only looks: GET and HEAD of known paths, from loopback names, without a body.
 * `isKnownPath` decides between "no such page" and "not like this".
 */
export function refusalOf(
  request: { method?: string; url?: string; headers: IncomingHttpHeaders },
  isKnownPath: (path: string) => boolean,
): Refusal | null {
  const { method = "", url = "", headers } = request;
  if (!LOOPBACK_HOST.test(headers.host ?? "")) {
    return {
      status: 403,
      message: "this monitor answers to localhost, 127.0.0.1 and [::1] only (use ssh -L)",
    };
  }
  if (url.length > TARGET_CHARS_MAX) {
    return { status: 400, message: `expected a path and query of at most ${TARGET_CHARS_MAX} characters` };
  }
  if (!url.startsWith("/")) return { status: 400, message: "expected a path that begins with /" };
  const path = url.split("?", 1)[0]!;
  if (!isKnownPath(path)) return { status: 404, message: "no such page; there are /, /api/status, /metrics" };
  if (method !== "GET" && method !== "HEAD") {
    return { status: 405, message: "the monitor only looks: GET or HEAD", allow: "GET, HEAD" };
  }
  if (headers["transfer-encoding"] !== undefined || Number(headers["content-length"] ?? 0) !== 0) {
    return { status: 413, message: "expected a request without a body" };
  }
  return null;
}
