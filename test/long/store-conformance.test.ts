import { afterAll, beforeAll } from "vitest";
import { s3UnderTest } from "../support/s3-under-test.ts";
import { type S3Server, startS3 } from "../support/servers.ts";
import { storeConformance } from "../support/store-conformance.ts";

let server: S3Server & { stop(): Promise<void> };
beforeAll(async () => {
  server = await startS3("versitygw");
});
afterAll(() => server?.stop());

storeConformance("an S3 store on versitygw, which is strict", () =>
  s3UnderTest(server, { publish: "create-only", verify: "checksum", refusesWrongChecksum: true }),
);
