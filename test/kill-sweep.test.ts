import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import {
  type KillSubject,
  killAt,
  orphanedEngines,
  packHashesDirectory,
  packHashesS3,
  runArgs,
  spoolLeftovers,
  writeRows,
} from "./support/kills.ts";
import { Machine } from "./support/program.ts";
import { credentialEnv, makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/** Rows and pack size that make three batches. */
const ROWS = 18;
const PACK_BYTES = "48KiB";

let server: S3Server;
let bucket: string;
let machine: Machine;
beforeAll(async () => {
  server = sharedS3("weed");
  bucket = await makeBucket(server, "sweep");
  machine = new Machine(credentialEnv(server));
  writeRows(machine, ROWS, mulberry32(2));
});
afterAll(() => machine?.remove());

describe.each([
  {
    store: "S3",
    points: ["rename", "ready", "put", "put-sent", "put-answered", "verify", "verify-answered", "unlink"],
  },
  { store: "directory", points: ["rename", "link", "linked", "unlink", "unlinked"] },
])("a three-batch run into $store", ({ store, points }) => {
  let expected: Map<string, string>;
  beforeAll(async () => {
    const reference = subject(store, "reference");
    expect(await machine.run(runArgs(reference))).toMatchObject({ code: 0 });
    expected = await stored(store, "reference");
    expect(expected.size).toBe(3);
  });

  test.each(points)(
    "killed at every %s ends whole after each resume",
    { timeout: 120_000 },
    async (point) => {
      const run = subject(store, point);
      // nth rises with each start: a kill that made no progress is passed by the next start.
      let kills = 0;
      for (let nth = 1; await killAt(run, { point, nth, delayMs: 0 }); nth += 1) kills += 1;
      expect(kills).toBeGreaterThan(0);
      const verified = await machine.run([
        ...["verify", run.address, "--deep", "--json"],
        ...endpoint(store),
      ]);
      expect(JSON.parse(verified.stdout.trim())).toMatchObject({
        ok: true,
        rows: { planned: ROWS, committed: ROWS, missing: 0, duplicate: 0, corrupt: 0 },
        aliens: 0,
      });
      expect(await stored(store, point)).toEqual(expected);
      expect(spoolLeftovers(run)).toEqual([]);
      expect(await orphanedEngines(run)).toEqual([]);
    },
  );
});

function subject(store: string, name: string): KillSubject {
  const address = store === "S3" ? `s3://${bucket}/p/${name}` : `file:${machine.path("store")}/${name}`;
  return {
    machine,
    address,
    endpoint: store === "S3" ? server.endpoint : null,
    rows: ROWS,
    packBytes: PACK_BYTES,
  };
}

function endpoint(store: string): string[] {
  return store === "S3" ? ["--endpoint", server.endpoint] : [];
}

async function stored(store: string, name: string): Promise<Map<string, string>> {
  if (store !== "S3") return packHashesDirectory(machine.path("store", name));
  return packHashesS3(s3Client(server), bucket, `p/${name}`);
}
