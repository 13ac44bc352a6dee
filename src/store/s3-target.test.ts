import { expect, test } from "vitest";
import { parseAddress } from "./address.ts";
import { resolveTarget, targetBySdk } from "./s3-target.ts";
import type { S3Spec } from "./store.ts";

const credentials = async () => ({ accessKeyId: "a", secretAccessKey: "b" });

test.each([
  ["http://127.0.0.1:9000", "drafts"],
  ["https://s3.example.com", "drafts.of.mine"],
  ["https://s3.example.com:443", "drafts"],
  ["https://storage.example.com:8443/gate/way", "drafts-1"],
  ["http://[::1]:9000", "drafts"],
  ["https://s3.eu-central-1.amazonaws.com", "drafts"],
])("at %s the bucket %s is reached where the SDK reaches it", async (endpoint, bucket) => {
  const spec = parseAddress(`s3://${bucket}/run`, { endpoint }) as S3Spec;
  expect(spec.pathStyle).toBe(true);
  expect(await resolveTarget(spec, credentials)).toEqual(await targetBySdk(spec, credentials));
});

test.each([
  [{ region: "eu-central-1" }, "drafts.s3.eu-central-1.amazonaws.com", ""],
  [{ endpoint: "https://s3.example.com", pathStyle: false }, "drafts.s3.example.com", ""],
  [{ region: "us-west-2", pathStyle: true }, "s3.us-west-2.amazonaws.com", "/drafts"],
])("%j is reached at %s", async (options, hostname, basePath) => {
  const spec = parseAddress("s3://drafts/run", options) as S3Spec;
  expect(await resolveTarget(spec, credentials)).toEqual({
    protocol: "https:",
    hostname,
    port: undefined,
    basePath,
  });
});
