import type { TestProject } from "vitest/node";
import { type S3Limits, type S3Server, type S3ServerKind, startS3 } from "./servers.ts";

/** What a test file finds by `inject("s3")`: the running servers, or why there is none. */
export type SharedServers = Record<"weed" | "rclone", S3Server | { missing: string }>;

declare module "vitest" {
  export interface ProvidedContext {
    s3: SharedServers;
  }
}

/**
 * One instance of each server for the whole run; each test file makes a bucket of its own. Where a run's speed is
 * measured, no server limits it.
 */
export default async function globalSetup(project: TestProject): Promise<() => Promise<void>> {
  const limits = project.name === "quiet" ? {} : { uploadsAtOnce: 2 };
  const [weed, rclone] = await Promise.all([start("weed", limits), start("rclone", limits)]);
  project.provide("s3", { weed: weed.shared, rclone: rclone.shared });
  return async () => {
    await Promise.all([weed.stop(), rclone.stop()]);
  };
}

/** A server that cannot start fails the tests that need it, with what to install; the others still run. */
async function start(
  kind: S3ServerKind,
  limits: S3Limits,
): Promise<{ shared: S3Server | { missing: string }; stop(): Promise<void> }> {
  try {
    const { stop, ...shared } = await startS3(kind, limits);
    return { shared, stop };
  } catch (error) {
    return { shared: { missing: (error as Error).message }, stop: async () => {} };
  }
}
