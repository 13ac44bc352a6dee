import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { readAwsProfile } from "./aws-profile.ts";

let directory: string;
let env: Record<string, string>;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-profile-"));
  env = { AWS_CONFIG_FILE: join(directory, "config"), HOME: directory };
  writeFileSync(
    env.AWS_CONFIG_FILE!,
    `[default]
region = eu-west-1

[profile lab]
region = eu-central-1
endpoint_url = https://all.example.com
services = lab-services

[services lab-services]
s3 =
  endpoint_url = https://s3.lab.example.com
dynamodb =
  endpoint_url = https://other.example.com

[profile plain]
endpoint_url = http://127.0.0.1:9000

[profile amazon]
endpoint_url = https://all.example.com
ignore_configured_endpoint_urls = true
`,
  );
});
afterAll(() => rmSync(directory, { recursive: true }));

test.each([
  ["default", "eu-west-1", null],
  ["lab", "eu-central-1", "https://s3.lab.example.com"],
  ["plain", null, "http://127.0.0.1:9000"],
  ["amazon", null, null],
  ["unknown", null, null],
])("profile %s has region %s and endpoint %s", async (name, region, endpoint) => {
  expect(await readAwsProfile(name, env)).toEqual({ region, endpoint });
});

test("endpoints that the environment says to ignore are ignored", async () => {
  const ignoring = { ...env, AWS_IGNORE_CONFIGURED_ENDPOINT_URLS: "true" };
  expect(await readAwsProfile("lab", ignoring)).toEqual({ region: "eu-central-1", endpoint: null });
});

test("without a config file nothing is known", async () => {
  const absent = { AWS_CONFIG_FILE: join(directory, "absent") };
  expect(await readAwsProfile("default", absent)).toEqual({ region: null, endpoint: null });
  expect(await readAwsProfile("default", { HOME: directory })).toEqual({ region: null, endpoint: null });
});
