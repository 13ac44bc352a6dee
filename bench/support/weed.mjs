import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { CreateBucketCommand, S3Client } from "@aws-sdk/client-s3";

const ROOT = dirname(dirname(dirname(fileURLToPath(import.meta.url))));
const PORTS = [
  "s3.port",
  "s3.port.grpc",
  "master.port",
  "master.port.grpc",
  "filer.port",
  "filer.port.grpc",
].concat(["volume.port", "volume.port.grpc", "webdav.port", "admin.port", "admin.port.grpc"]);

/** A SeaweedFS on loopback with one bucket, "bench"; `env` holds its credentials. `stop` ends it and removes its data. */
export async function startWeed() {
  const binary = join(ROOT, ".cache/s3/bin/weed");
  if (!existsSync(binary)) throw new Error("SeaweedFS is not installed: node scripts/setup.mjs");
  const directory = mkdtempSync(join(tmpdir(), "forebay-weed-"));
  mkdirSync(join(directory, "data"));
  const ports = await freePorts(PORTS.length);
  const env = { AWS_ACCESS_KEY_ID: "bench", AWS_SECRET_ACCESS_KEY: randomBytes(12).toString("hex") };
  const child = spawn(
    binary,
    [
      ...[
        "mini",
        `-dir=${join(directory, "data")}`,
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-admin.ui=false",
      ],
      ...[
        "-webdav=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        `-filer.localSocket=${join(directory, "f")}`,
      ],
      ...PORTS.map((name, i) => `-${name}=${ports[i]}`),
    ],
    { cwd: directory, env: { PATH: process.env.PATH, HOME: directory, ...env }, stdio: "ignore" },
  );
  const endpoint = `http://127.0.0.1:${ports[0]}`;
  process.env.AWS_SDK_JS_NODE_VERSION_SUPPORT_WARNING_DISABLED = "true";
  const client = new S3Client({
    endpoint,
    region: "us-east-1",
    forcePathStyle: true,
    credentials: { accessKeyId: env.AWS_ACCESS_KEY_ID, secretAccessKey: env.AWS_SECRET_ACCESS_KEY },
  });
  for (let tries = 0; ; tries += 1) {
    try {
      await client.send(new CreateBucketCommand({ Bucket: "bench" }));
      break;
    } catch (error) {
      if (tries > 300) throw error;
      await new Promise((resolve) => setTimeout(resolve, 200));
    }
  }
  return {
    endpoint,
    env,
    stop() {
      child.kill("SIGKILL");
      rmSync(directory, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 });
    },
  };
}

async function freePorts(count) {
  const servers = await Promise.all(
    Array.from(
      { length: count },
      () =>
        new Promise((resolve, reject) => {
          const server = createServer();
          server.once("error", reject);
          server.listen(0, "127.0.0.1", () => resolve(server));
        }),
    ),
  );
  const ports = servers.map((server) => server.address().port);
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  return ports;
}
