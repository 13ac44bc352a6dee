import { describe, expect, it } from "vitest";
import {
  checkEndpoint,
  formatAddress,
  parseAddress,
  parseStoreAddress,
  runInStore,
  storeOptionsFromEnv,
} from "./address.ts";

const local = { endpoint: "http://127.0.0.1:9000/" };

describe("an s3 address", () => {
  it("is bucket and prefix, with path style and us-east-1 for a custom endpoint", () => {
    expect(parseAddress("s3://drafts/teams/a/run-1", local)).toEqual({
      kind: "s3",
      bucket: "drafts",
      prefix: "teams/a/run-1",
      endpoint: "http://127.0.0.1:9000",
      region: "us-east-1",
      pathStyle: true,
      profile: null,
    });
  });

  it("is Amazon's own without an endpoint, and what was said is kept", () => {
    expect(parseAddress("s3://drafts/run", { region: "eu-west-1", profile: "gpu" })).toMatchObject({
      endpoint: null,
      pathStyle: false,
      region: "eu-west-1",
      profile: "gpu",
    });
    expect(parseAddress("s3://drafts/run", { ...local, pathStyle: false })).toMatchObject({
      pathStyle: false,
    });
  });

  it.each([
    ["s3://", /expected a bucket name/],
    ["s3:///run", /expected a bucket name/],
    ["s3://Drafts/run", /found "Drafts"/],
    ["s3://10.0.0.1/run", /expected a bucket name/],
    ["s3://a..b/run", /expected a bucket name/],
    ["s3://drafts", /names a store but no run/],
    ["s3://drafts/", /names a store but no run/],
    ["s3://drafts/a//b", /found an empty one/],
    ["s3://drafts/../b", /found "\.\."/],
    ["s3://drafts/a/.hidden", /found "\.hidden"/],
    ["s3://drafts/a b", /found "a b"/],
    ["s3://drafts/a?x=1", /query/],
    [`s3://drafts/${"x/".repeat(300)}y`, /longer than 512/],
    ["gs://drafts/run", /begins neither/],
    ["drafts/run", /begins neither/],
    ["", /begins neither/],
  ])("%j is refused as a usage error", (address, message) => {
    expect(() => parseAddress(address, local)).toThrow(
      expect.objectContaining({ name: "RunError", exit: 2, message: expect.stringMatching(message) }),
    );
  });

  it("may be a whole store where that is asked for", () => {
    expect(parseStoreAddress("s3://drafts")).toMatchObject({ bucket: "drafts", prefix: "" });
    expect(runInStore(parseStoreAddress("s3://drafts/a"), "run")).toMatchObject({ prefix: "a/run" });
    expect(runInStore(parseStoreAddress("s3://drafts"), "run")).toMatchObject({ prefix: "run" });
    expect(() => runInStore(parseStoreAddress("s3://drafts"), "../run")).toThrow(/found "..\/run"/);
  });
});

describe("a file address", () => {
  it.each([
    ["file:demo-run/demo", "demo-run", "demo"],
    ["file:/data/runs/a/", "/data/runs", "a"],
    ["file:///data/runs/a", "/data/runs", "a"],
    ["file:/a", "/", "a"],
    ["file:./a", ".", "a"],
    ["file:../b c/a", "../b c", "a"],
  ])("%s is directory %s and name %s", (address, directory, name) => {
    expect(parseAddress(address)).toEqual({ kind: "directory", directory, name });
  });

  it.each([
    ["file:", /names no directory/],
    ["file:demo", /names a store but no run/],
    ["file:/", /names a store but no run/],
    ["file:a/..", /names a store but no run/],
    ["file://host/a", /names a host/],
    ["file:a/b\u0000c", /control characters/],
    ["file:a/b c", /found "b c"/],
  ])("%j is refused as a usage error", (address, message) => {
    expect(() => parseAddress(address)).toThrow(
      expect.objectContaining({ exit: 2, message: expect.stringMatching(message) }),
    );
  });

  it("takes no endpoint", () => {
    expect(() => parseAddress("file:a/b", local)).toThrow(/an endpoint was given/);
  });
});

it.each(["s3://drafts/a/run", "file:dir/run", "file:/dir/sub/run", "file:/run"])(
  "%s is written as it is read",
  (address) => {
    expect(formatAddress(parseAddress(address))).toBe(address);
  },
);

describe("an endpoint", () => {
  it.each([
    ["https://s3.example.com", "https://s3.example.com"],
    ["http://127.0.0.1:8333/", "http://127.0.0.1:8333"],
    ["https://host/storage/v1/s3/", "https://host/storage/v1/s3"],
    ["HTTPS://S3.Example.com:443", "https://s3.example.com"],
    ["http://[::1]:9000", "http://[::1]:9000"],
    ["http://10.1.2.3:9000", "http://10.1.2.3:9000"],
  ])("%s is used as %s", (given, used) => {
    expect(checkEndpoint(given)).toBe(used);
  });

  it.each([
    "ftp://host",
    "host:9000",
    "127.0.0.1:9000",
    "file:///etc/passwd",
    "",
    "https://host?x=1",
    "https://host#x",
    "http://169.254.169.254",
    "http://169.254.170.2/creds",
    "http://2852039166",
    "http://0xa9fea9fe/",
    "http://[::ffff:169.254.169.254]",
    "http://[fd00:ec2::254]",
    "http://[fe80::1]",
    "http://metadata.google.internal",
  ])("%j is refused", (endpoint) => {
    expect(() => checkEndpoint(endpoint)).toThrow(expect.objectContaining({ exit: 2 }));
  });

  it("with credentials in it is refused without repeating them", () => {
    for (const endpoint of ["https://key:hunter2@host", "ftp://key:hunter2@host"]) {
      try {
        checkEndpoint(endpoint);
        expect.unreachable();
      } catch (error) {
        expect(`${JSON.stringify(error)}${(error as Error).message}`).not.toContain("hunter2");
      }
    }
  });
});

it("the SDK's own variables say where the store is", () => {
  expect(
    storeOptionsFromEnv({
      AWS_ENDPOINT_URL: "http://a",
      AWS_ENDPOINT_URL_S3: "http://b",
      AWS_REGION: "r",
      AWS_PROFILE: "p",
    }),
  ).toEqual({ endpoint: "http://b", region: "r", profile: "p" });
  const ignored = { AWS_ENDPOINT_URL: "http://a", AWS_IGNORE_CONFIGURED_ENDPOINT_URLS: "true" };
  expect(storeOptionsFromEnv(ignored).endpoint).toBeNull();
  expect(storeOptionsFromEnv({ AWS_ENDPOINT_URL: "" })).toEqual({
    endpoint: null,
    region: null,
    profile: null,
  });
});
