import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { CreateBucketCommand, ListBucketsCommand, PutObjectCommand, S3Client } from "@aws-sdk/client-s3";

/** A running S3 server on loopback. Plain data, so that vitest can hand it to the test files. */
export interface S3Server {
  kind: S3ServerKind;
  endpoint: string;
  accessKeyId: string;
  secretAccessKey: string;
  pid: number;
  /** Where its objects and its log lie. */
  directory: string;
}

/** SeaweedFS (the default), rclone (ignores conditional writes, believes any checksum), versitygw (strict). */
export type S3ServerKind = "weed" | "rclone" | "versitygw";

export interface S3Limits {
  /**
   * SeaweedFS takes a lock for each conditional PUT, and a writer that does not get it asks again a second later: the
   * sixteen of our probe keep each other waiting for up to ten. Two at a time are done in a tenth of one.
   */
  uploadsAtOnce?: number;
}

const BIN = join(dirname(dirname(dirname(fileURLToPath(import.meta.url)))), ".cache/s3/bin");
const INSTALL: Record<S3ServerKind, string> = {
  weed: "node scripts/setup.mjs",
  rclone: "node scripts/setup.mjs",
  versitygw: "node scripts/setup.mjs --long",
};
const READY_WITHIN_MS = 30_000;

/**
 * Starts a server on free ports with fresh credentials and waits until it has answered a signed ListBuckets and
 * kept one object. It dies with this process. Throws with what to install, or with the server's last words.
 */
export async function startS3(
  kind: S3ServerKind,
  limits: S3Limits = {},
): Promise<S3Server & { stop(): Promise<void> }> {
  const binary = join(BIN, kind);
  if (!existsSync(binary)) throw new Error(`${kind} is not installed: run \`${INSTALL[kind]}\` first`);
  const directory = mkdtempSync(join(tmpdir(), `forebay-${kind}-`));
  const accessKeyId = `test${randomBytes(8).toString("hex")}`;
  const secretAccessKey = randomBytes(20).toString("hex");
  const ports = await freePorts(kind === "weed" ? 11 : 1);
  const { args, env } = commandLine(kind, directory, ports, accessKeyId, secretAccessKey, limits);
  const child = startChild(binary, args, env, directory);
  const server: S3Server = {
    kind,
    endpoint: `http://127.0.0.1:${ports[0]}`,
    accessKeyId,
    secretAccessKey,
    pid: child.pid!,
    directory,
  };
  const stop = async () => {
    await endChild(child);
    rmSync(directory, { recursive: true, force: true });
  };
  try {
    await untilReady(server, child);
  } catch (error) {
    const log = readFileSync(join(directory, "log"), "utf8").slice(-2_000);
    await stop();
    throw new Error(`${kind} did not become ready: ${(error as Error).message}\n${log}`, { cause: error });
  }
  return { ...server, stop };
}

/** A plain SDK client for looking at (or breaking) a store behind the program's back. */
export function s3Client(server: S3Server): S3Client {
  return new S3Client({
    endpoint: server.endpoint,
    region: "us-east-1",
    forcePathStyle: true,
    credentials: { accessKeyId: server.accessKeyId, secretAccessKey: server.secretAccessKey },
    requestChecksumCalculation: "WHEN_REQUIRED",
    responseChecksumValidation: "WHEN_REQUIRED",
  });
}

/** Creates a bucket with a name of its own ("t-" and `hint`) and returns the name. */
export async function makeBucket(server: S3Server, hint = "bucket"): Promise<string> {
  const bucket = `t-${hint}-${randomBytes(4).toString("hex")}`;
  const client = s3Client(server);
  try {
    await client.send(new CreateBucketCommand({ Bucket: bucket }));
  } finally {
    client.destroy();
  }
  return bucket;
}

/** The environment by which a child process (the built CLI) finds these credentials, and no others. */
export function credentialEnv(server: S3Server): Record<string, string> {
  return {
    AWS_ACCESS_KEY_ID: server.accessKeyId,
    AWS_SECRET_ACCESS_KEY: server.secretAccessKey,
    AWS_SHARED_CREDENTIALS_FILE: "/dev/null",
    AWS_CONFIG_FILE: "/dev/null",
    AWS_EC2_METADATA_DISABLED: "true",
  };
}

/** `count` different loopback ports that nothing listened on a moment ago. */
export async function freePorts(count: number): Promise<number[]> {
  const servers = Array.from({ length: count }, () => createServer());
  try {
    return await Promise.all(
      servers.map(
        (server) =>
          new Promise<number>((resolve, reject) => {
            server.on("error", reject);
            server.listen(0, "127.0.0.1", () => resolve((server.address() as { port: number }).port));
          }),
      ),
    );
  } finally {
    await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))));
  }
}

function commandLine(
  kind: S3ServerKind,
  directory: string,
  ports: number[],
  accessKeyId: string,
  secretAccessKey: string,
  { uploadsAtOnce }: S3Limits,
): { args: string[]; env: Record<string, string> } {
  const data = join(directory, "data");
  mkdirSync(data);
  switch (kind) {
    case "weed": {
      // Every port is moved: two test runs on one machine must not meet.
      const names = ["s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "filer.port"];
      names.push("filer.port.grpc", "volume.port", "volume.port.grpc", "webdav.port", "admin.port");
      names.push("admin.port.grpc");
      return {
        args: [
          ...["mini", `-dir=${data}`, "-ip=127.0.0.1", "-ip.bind=127.0.0.1"],
          ...["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0"],
          ...["-s3.autoCreateBucket=false", `-filer.localSocket=${join(directory, "filer.sock")}`],
          ...(uploadsAtOnce ? [`-s3.concurrentFileUploadLimit=${uploadsAtOnce}`] : []),
          ...names.map((name, i) => `-${name}=${ports[i]}`),
        ],
        env: { AWS_ACCESS_KEY_ID: accessKeyId, AWS_SECRET_ACCESS_KEY: secretAccessKey },
      };
    }
    case "rclone": {
      const auth = ["--auth-key", `${accessKeyId},${secretAccessKey}`];
      return {
        args: ["serve", "s3", "--config", "", "--addr", `127.0.0.1:${ports[0]}`, ...auth, data],
        env: {},
      };
    }
    case "versitygw":
      return {
        args: ["--port", `127.0.0.1:${ports[0]}`, "--quiet", "--keep-alive", "posix", data],
        env: { ROOT_ACCESS_KEY: accessKeyId, ROOT_SECRET_KEY: secretAccessKey },
      };
  }
}

/**
 * A child that the kernel kills when this process dies, however it dies: an orphaned server would hold its ports
 * and a gigabyte. Without util-linux's setpriv it is killed at a normal exit only.
 */
function startChild(
  binary: string,
  args: string[],
  env: Record<string, string>,
  directory: string,
): ChildProcess {
  const log = openSync(join(directory, "log"), "a");
  const guard = existsSync("/usr/bin/setpriv") ? ["/usr/bin/setpriv", "--pdeathsig", "KILL"] : [];
  const [command, ...rest] = [...guard, binary, ...args] as [string, ...string[]];
  const child = spawn(command, rest, {
    cwd: directory,
    env: { PATH: process.env.PATH ?? "", HOME: directory, ...env },
    stdio: ["ignore", log, log],
  });
  closeSync(log);
  const killAtExit = () => child.kill("SIGKILL");
  process.once("exit", killAtExit);
  child.once("exit", () => process.removeListener("exit", killAtExit));
  return child;
}

/** Kills the child by its id and waits until it is gone. */
function endChild(child: ChildProcess): Promise<void> {
  return new Promise((resolve) => {
    if (child.exitCode !== null || child.signalCode !== null) return resolve();
    child.once("exit", () => resolve());
    child.kill("SIGKILL");
  });
}

async function untilReady(server: S3Server, child: ChildProcess): Promise<void> {
  const client = s3Client(server);
  const deadline = AbortSignal.timeout(READY_WITHIN_MS);
  const steps = [
    new ListBucketsCommand({}),
    new CreateBucketCommand({ Bucket: "ready" }),
    new PutObjectCommand({ Bucket: "ready", Key: "ready", Body: "x" }),
  ];
  try {
    for (const step of steps) {
      for (;;) {
        if (child.exitCode !== null) throw new Error(`it exited with ${child.exitCode}`);
        try {
          await client.send(step as ListBucketsCommand, { abortSignal: deadline });
          break;
        } catch (error) {
          if ((error as Error).name === "BucketAlreadyOwnedByYou") break;
          if (deadline.aborted) throw error;
          await new Promise((resolve) => setTimeout(resolve, 50));
        }
      }
    }
  } finally {
    client.destroy();
  }
}
