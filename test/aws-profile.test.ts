import { writeFileSync } from "node:fs";
import { afterAll, expect, test } from "vitest";
import { Machine } from "./support/program.ts";
import { credentialEnv, makeBucket } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

const server = sharedS3();
const machine = new Machine();
afterAll(() => machine.remove());

test("a profile alone, by flag or variable, gives endpoint, region and keys", async () => {
  const bucket = await makeBucket(server, "profile");
  const { AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY } = credentialEnv(server);
  const AWS_CONFIG_FILE = machine.path("config");
  const AWS_SHARED_CREDENTIALS_FILE = machine.path("credentials");
  writeFileSync(AWS_CONFIG_FILE, `[profile lab]\nregion = us-east-1\nendpoint_url = ${server.endpoint}\n`);
  writeFileSync(
    AWS_SHARED_CREDENTIALS_FILE,
    `[lab]\naws_access_key_id = ${AWS_ACCESS_KEY_ID}\naws_secret_access_key = ${AWS_SECRET_ACCESS_KEY}\n`,
  );
  const env = { AWS_CONFIG_FILE, AWS_SHARED_CREDENTIALS_FILE, AWS_EC2_METADATA_DISABLED: "true" };
  const address = `s3://${bucket}/p`;
  const byFlag = await machine.run(["ls", address, "--profile", "lab", "--json"], { env });
  const byVariable = await machine.run(["ls", address, "--json"], { env: { ...env, AWS_PROFILE: "lab" } });
  for (const ended of [byFlag, byVariable]) expect(ended).toMatchObject({ code: 0, stderr: "" });
  const without = await machine.run(["ls", address, "--endpoint", server.endpoint], { env });
  expect(without.code).toBe(6);
});
