import { ListObjectsV2Command, PutObjectCommand } from "@aws-sdk/client-s3";
import { describe, expect, it } from "vitest";
import { makeBucket, s3Client } from "./support/servers.ts";
import { sharedS3 } from "./support/shared-s3.ts";

describe.each(["weed", "rclone"] as const)("the shared %s", (kind) => {
  it("keeps an object in a bucket of this file's own", async () => {
    const server = sharedS3(kind);
    const bucket = await makeBucket(server, "servers");
    const client = s3Client(server);
    await client.send(new PutObjectCommand({ Bucket: bucket, Key: "a/b", Body: "hello" }));
    const { Contents } = await client.send(new ListObjectsV2Command({ Bucket: bucket }));
    expect(Contents?.map(({ Key, Size }) => [Key, Size])).toEqual([["a/b", 5]]);
    client.destroy();
  });
});
