import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { runDirectoryPath } from "../control/run-directory.ts";
import { formatAddress, parseAddress, parseStoreAddress, storeOptionsFromEnv } from "../store/address.ts";
import type { StoreSpec } from "../store/store.ts";
import { type Call, requireAddress } from "./verb.ts";

/** Where a run lies, in the store and on this machine. */
export interface RunPlace {
  spec: StoreSpec;
  /** In its one canonical form: directories absolute. */
  address: string;
  /** The run directory of this part on this machine, whether it exists or not. */
  directory: string;
}

export function runPlace(call: Call, address = requireAddress(call)): RunPlace {
  const spec = absoluteSpec(parseAddress(address, storeOptions(call)), call.io.directory);
  const canonical = formatAddress(spec);
  const { runDir, part } = call.settings.values;
  const directory =
    runDir ?? runDirectoryPath({ stateHome: stateHome(call.io.env), address: canonical, part });
  return { spec, address: canonical, directory };
}

/** As runPlace, for a whole store that may hold many runs. */
export function storePlace(call: Call, address = requireAddress(call)): StoreSpec {
  return absoluteSpec(parseStoreAddress(address, storeOptions(call)), call.io.directory);
}

export function stateHome(env: NodeJS.ProcessEnv): string {
  return env.XDG_STATE_HOME || join(env.HOME || homedir(), ".local", "state");
}

/** Flags and run.yaml first, then what the SDK's own variables say, then its profile. */
function storeOptions(call: Call) {
  const { endpoint, region, profile, pathStyle } = call.settings.values;
  const fromEnv = storeOptionsFromEnv(call.io.env);
  return {
    // An endpoint in the environment or run.yaml is about S3; only one on the command line contradicts file:.
    endpoint:
      isFile(call) && call.settings.sources.endpoint !== "flag"
        ? null
        : (endpoint ?? (isFile(call) ? null : (fromEnv.endpoint ?? call.awsProfile.endpoint))),
    region: region ?? fromEnv.region ?? call.awsProfile.region,
    profile: profile ?? fromEnv.profile,
    pathStyle,
  };
}

function isFile(call: { address: string | null }): boolean {
  return call.address?.startsWith("file:") === true;
}

function absoluteSpec(spec: StoreSpec, directory: string): StoreSpec {
  return spec.kind === "directory" ? { ...spec, directory: resolve(directory, spec.directory) } : spec;
}
