import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll } from "vitest";
import { openStore } from "../src/store/open.ts";
import { s3UnderTest } from "./support/s3-under-test.ts";
import { startS3 } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";
import { storeConformance } from "./support/store-conformance.ts";

const directory = mkdtempSync(join(tmpdir(), "forebay-store-"));
// One without limits: here sixteen writers at once are to meet in the server itself.
let weed: Awaited<ReturnType<typeof startS3>>;
beforeAll(async () => {
  weed = await startS3("weed");
});
afterAll(async () => {
  await weed?.stop();
  rmSync(directory, { recursive: true, force: true });
});

storeConformance("a directory store", async () => ({
  open: (name) => openStore({ kind: "directory", directory, name }),
  spoil: async (name, key) => {
    const bytes = readFileSync(join(directory, name, key));
    bytes[0]! ^= 1;
    writeFileSync(join(directory, name, key), bytes);
  },
  expected: { publish: "create-only", verify: "readback", refusesWrongChecksum: true },
}));

storeConformance("an S3 store on SeaweedFS", () =>
  s3UnderTest(weed, { publish: "create-only", verify: "checksum", refusesWrongChecksum: true }),
);

storeConformance("an S3 store on rclone, which ignores conditions and believes any checksum", () =>
  s3UnderTest(sharedS3("rclone"), { publish: "overwrite", verify: "etag", refusesWrongChecksum: false }),
);
