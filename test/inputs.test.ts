import { readFileSync, writeFileSync } from "node:fs";
import { GetObjectCommand, PutObjectCommand } from "@aws-sdk/client-s3";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type FaultyRun, faultyRun, packsOf, startRun } from "./support/faults.ts";
import { makeBucket, type S3Server, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

/** What a run stores beside its packs, on a store that honours create-only PUTs and on one that ignores them. */

describe.each(["weed", "rclone"] as const)("inputs on %s", (kind) => {
  let server: S3Server;
  let bucket: string;
  const runs: FaultyRun[] = [];
  beforeAll(async () => {
    server = sharedS3(kind);
    bucket = await makeBucket(server, "inputs");
  });
  afterAll(() => Promise.all(runs.map(({ machine }) => machine.remove())));

  function begin(name: string): { run: FaultyRun; recipe: string } {
    const run = faultyRun(name, { server, bucket });
    runs.push(run);
    const recipe = run.machine.path("recipe.yaml");
    writeFileSync(recipe, "layers: 5\n");
    writeFileSync(run.machine.path("drafter.json"), '{"hidden_size":64}\n');
    return { run, recipe };
  }

  const keyOf = (run: FaultyRun, key: string) => ({ Bucket: bucket, Key: `p/${run.name}/${key}` });
  const stored = async (run: FaultyRun, key: string) => {
    const { Body } = await s3Client(server).send(new GetObjectCommand(keyOf(run, key)));
    return Buffer.from(await Body!.transformToByteArray());
  };

  test("attached files lie beside the run, byte for byte, and run.json names them", async () => {
    const { run, recipe } = begin("attached");
    const ended = await startRun(run, "--attach", recipe, "--attach", run.machine.path("drafter.json")).ended;
    expect(ended.code, ended.stderr).toBe(0);
    const record = JSON.parse((await stored(run, "run.json")).toString("utf8"));
    expect(record.files.attached).toEqual(["inputs/recipe.yaml", "inputs/drafter.json"]);
    expect(await stored(run, "inputs/recipe.yaml")).toEqual(readFileSync(recipe));
    expect((await stored(run, "inputs/drafter.json")).toString()).toBe('{"hidden_size":64}\n');
  });

  test("another file of that name and size is not taken for ours, nor overwritten; nothing is computed", async () => {
    const { run, recipe } = begin("another");
    await s3Client(server).send(
      new PutObjectCommand({ ...keyOf(run, "inputs/recipe.yaml"), Body: "layers: 6\n" }),
    );
    const ended = await startRun(run, "--attach", recipe).ended;
    expect(ended.code, ended.stderr).toBe(9);
    expect(ended.stderr).toContain("inputs/recipe.yaml");
    expect(ended.stderr).toContain("it was not overwritten");
    expect((await stored(run, "inputs/recipe.yaml")).toString()).toBe("layers: 6\n");
    expect(await packsOf(run)).toEqual(new Map());
  });

  test("two files of one name are refused before anything is written", async () => {
    const { run, recipe } = begin("twice");
    const ended = await startRun(run, "--attach", recipe, "--attach", recipe).ended;
    expect(ended.code, ended.stderr).toBe(2);
    expect(ended.stderr).toContain("recipe.yaml");
    await expect(stored(run, "run.json")).rejects.toThrow();
  });
});
