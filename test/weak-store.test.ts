import { afterAll, beforeAll, expect, test } from "vitest";
import { events, expectWhole, type FaultyRun, faultyRun, packsOf, startRun } from "./support/faults.ts";
import { makeBucket, type S3Server } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/** The whole program on a real server that ignores create-only PUTs and believes any checksum. */

let server: S3Server;
let run: FaultyRun;
beforeAll(async () => {
  server = sharedS3("rclone");
  run = faultyRun("weak", { server, bucket: await makeBucket(server, "weak") });
});
afterAll(() => run?.machine.remove());

test("a second machine is refused, before anything is written", async () => {
  const ended = await startRun(run, "--part", "1/2").ended;
  expect(ended.code, ended.stderr).toBe(2);
  expect(ended.stderr).toMatch(/ignores If-None-Match, so only one machine may write/);
  expect(await packsOf(run)).toEqual(new Map());
});

test("a run ends whole, and says in log and status what is weaker", async () => {
  const strong = faultyRun("strong", null);
  const reference = await startRun(strong).ended;
  expect(reference.code, reference.stderr).toBe(0);
  const ended = await startRun(run).ended;
  expect(ended.code, ended.stderr).toBe(0);
  expect(
    events(run, "store.weaker")
      .map(({ note }) => note)
      .join("\n"),
  ).toMatch(/only one machine may write/);
  const status = await run.machine.run(["status", run.address, "--json", "--endpoint", server.endpoint]);
  expect(JSON.parse(status.stdout).s3).toMatchObject({ publish_mode: "overwrite", verify_mode: "etag" });
  await expectWhole(run, await packsOf(strong));
  await strong.machine.remove();
});
