import { existsSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

/** What a profile of the shared AWS config file says about where its store is. */
export interface AwsProfile {
  region: string | null;
  endpoint: string | null;
}

/**
 * Read as the SDK reads it: `region`, and `endpoint_url` of the profile's `services` section for S3, else its own.
 * Nothing where there is no such file or profile; that the credentials lack one is told when they are asked for.
 * Source: AWS SDKs and Tools Reference Guide, "Shared config and credentials files", "Service-specific endpoints".
 */
export async function readAwsProfile(
  name: string,
  env: Record<string, string | undefined>,
): Promise<AwsProfile> {
  const configFilepath = env.AWS_CONFIG_FILE || join(env.HOME || homedir(), ".aws", "config");
  const none = { region: null, endpoint: null };
  if (!existsSync(configFilepath)) return none;
  const { loadSharedConfigFiles } = await import("@smithy/core/config");
  // Credentials are the chain's business: nothing but the config file is opened here.
  const { configFile } = await loadSharedConfigFiles({
    configFilepath,
    filepath: "/dev/null",
    ignoreCache: true,
  });
  const profile = configFile[name];
  if (!profile) return none;
  const services = profile.services ? configFile[`services.${profile.services}`] : undefined;
  const endpoint = services?.["s3.endpoint_url"] || profile.endpoint_url || null;
  const ignoresEndpoint =
    (env.AWS_IGNORE_CONFIGURED_ENDPOINT_URLS || profile.ignore_configured_endpoint_urls) === "true";
  return { region: profile.region || null, endpoint: ignoresEndpoint ? null : endpoint };
}
