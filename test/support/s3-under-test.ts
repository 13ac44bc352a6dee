import { GetObjectCommand, PutObjectCommand } from "@aws-sdk/client-s3";
import { openStore } from "../../src/store/open.ts";
import type { StoreSpec, StoreTraits } from "../../src/store/store.ts";
import { makeBucket, type S3Server, s3Client } from "./servers.ts";
import type { StoreUnderTest } from "./store-conformance.ts";

/** A server as the conformance suite wants it, in a bucket of its own. */
export async function s3UnderTest(
  server: S3Server,
  expected: Omit<StoreTraits, "notes">,
): Promise<StoreUnderTest> {
  const bucket = await makeBucket(server, "conformance");
  return {
    open: (name) => openStore(specOf(server, bucket, `runs/${name}`), { credentials: credentialsOf(server) }),
    spoil: async (name, key) => {
      const client = s3Client(server);
      const object = { Bucket: bucket, Key: `runs/${name}/${key}` };
      const { Body } = await client.send(new GetObjectCommand(object));
      const bytes = Buffer.from(await Body!.transformToByteArray());
      bytes[0]! ^= 1;
      await client.send(new PutObjectCommand({ ...object, Body: bytes, ChecksumAlgorithm: "CRC32C" }));
      client.destroy();
    },
    expected,
  };
}

export function specOf(server: Pick<S3Server, "endpoint">, bucket: string, prefix: string) {
  return {
    kind: "s3",
    bucket,
    prefix,
    endpoint: server.endpoint,
    region: "us-east-1",
    pathStyle: true,
    profile: null,
  } as const satisfies StoreSpec;
}

export function credentialsOf(server: S3Server) {
  const { accessKeyId, secretAccessKey } = server;
  return async () => ({ accessKeyId, secretAccessKey });
}
