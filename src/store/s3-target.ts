import type { Credentials } from "./s3-credentials.ts";
import type { WireTarget } from "./s3-wire.ts";
import type { S3Spec } from "./store.ts";

/**
 * Where the requests for the spec's bucket go, without sending one. A server that is named, with the bucket in the
 * path, needs no rules; the SDK with all of them (regions, partitions, virtual hosts) is a fifth of a second and 40 MB
 * a thread, so it is asked only for the others.
 */
export async function resolveTarget(
  spec: S3Spec,
  credentials: () => Promise<Credentials>,
): Promise<WireTarget> {
  return spec.endpoint !== null && spec.pathStyle
    ? pathStyleTarget(spec.endpoint, spec.bucket)
    : targetBySdk(spec, credentials);
}

function pathStyleTarget(endpoint: string, bucket: string): WireTarget {
  const { protocol, hostname, port, pathname } = new URL(endpoint);
  return {
    protocol: protocol as WireTarget["protocol"],
    hostname,
    port: port === "" ? undefined : Number(port),
    basePath: `${pathname.replace(/\/$/, "")}/${bucket}`,
  };
}

/** Where the SDK would send a request for this bucket; exported for the test that holds our own rule against it. */
export async function targetBySdk(
  spec: S3Spec,
  credentials: () => Promise<Credentials>,
): Promise<WireTarget> {
  const { HeadObjectCommand, S3Client } = await import("@aws-sdk/client-s3");
  const client = new S3Client({
    ...(spec.endpoint === null ? {} : { endpoint: spec.endpoint }),
    // The spec alone says where a store is: it must mean the same in every thread and on every machine.
    ignoreConfiguredEndpointUrls: true,
    region: spec.region,
    forcePathStyle: spec.pathStyle,
    credentials,
  });
  const command = new HeadObjectCommand({ Bucket: spec.bucket, Key: "key" });
  let target: WireTarget | null = null;
  command.middlewareStack.add(
    () => async (args) => {
      const { protocol, hostname, port, path } = args.request as WireTarget & { path: string };
      target = { protocol, hostname, port, basePath: path.slice(0, -"/key".length) };
      return { response: {}, output: { $metadata: {} } };
    },
    { step: "build", priority: "high" },
  );
  try {
    await client.send(command);
    return target!;
  } finally {
    client.destroy();
  }
}
