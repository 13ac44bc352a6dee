import { inject } from "vitest";
import type { S3Server } from "./servers.ts";

/** The run's shared server of that kind; throws with what to install where it could not be started. */
export function sharedS3(kind: "weed" | "rclone" = "weed"): S3Server {
  const server = inject("s3")[kind];
  if ("missing" in server) throw new Error(server.missing);
  return server;
}
