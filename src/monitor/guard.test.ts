import { expect, test } from "vitest";
import { refusalOf } from "./guard.ts";

const isKnownPath = (path: string) => path === "/" || path === "/api/status";

function statusOf(request: { method?: string; url?: string; headers?: Record<string, string> }): number {
  const { method = "GET", url = "/", headers = {} } = request;
  return (
    refusalOf({ method, url, headers: { host: "localhost:8080", ...headers } }, isKnownPath)?.status ?? 200
  );
}

test.each(["localhost", "localhost:8080", "LOCALHOST:1", "127.0.0.1:65535", "[::1]:9000", "[::1]"])(
  "Host %s is this machine, with any port: ssh -L brings its own",
  (host) => {
    expect(statusOf({ headers: { host } })).toBe(200);
  },
);

test.each([
  "",
  "evil.example",
  "localhost.evil.example:8080",
  "127.0.0.1.evil.example",
  "evil.example:8080/localhost",
  "localhost:8080@evil.example",
  "127.0.0.2",
  "0.0.0.0:8080",
  "169.254.169.254",
  "[::2]",
  "localhost:",
  "localhost:123456",
  " localhost",
])("Host %j is refused: a name rebound to loopback is still another site's", (host) => {
  expect(statusOf({ headers: { host } })).toBe(403);
});

test("an unknown path is 404 whatever the method, a known one with another method 405", () => {
  expect(statusOf({ url: "/nope" })).toBe(404);
  expect(statusOf({ url: "/nope", method: "POST" })).toBe(404);
  for (const method of ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"]) {
    expect(statusOf({ url: "/api/status", method })).toBe(405);
  }
  expect(statusOf({ url: "/api/status?x=1", method: "HEAD" })).toBe(200);
});

test.each([
  "/../../etc/passwd",
  "/..%2f..%2fetc/passwd",
  "//etc/passwd",
  "/api/status/",
  "/API/STATUS",
  "/.env",
])("%s is no page", (url) => {
  expect(statusOf({ url })).toBe(404);
});

test("a huge query and a target that is no path are 400, a body is 413", () => {
  expect(statusOf({ url: `/api/status?${"q".repeat(3_000)}` })).toBe(400);
  expect(statusOf({ url: "http://localhost/api/status" })).toBe(400);
  expect(statusOf({ url: "*" })).toBe(400);
  expect(statusOf({ headers: { "content-length": "5" } })).toBe(413);
  expect(statusOf({ headers: { "content-length": "0" } })).toBe(200);
  expect(statusOf({ headers: { "transfer-encoding": "chunked" } })).toBe(413);
});
