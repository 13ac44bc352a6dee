import { lookup } from "node:dns";
import { request as requestHttp } from "node:http";
import { request as requestHttps } from "node:https";
import { BlockList, isIP, type LookupFunction } from "node:net";
import { EXIT, RunError } from "../base/errors.ts";

const PING_MS_MAX = 10_000;

/** Link-local and cloud metadata addresses: a URL must not reach an instance's credentials. */
const refused = new BlockList();
refused.addSubnet("169.254.0.0", 16);
refused.addSubnet("fe80::", 10, "ipv6");
refused.addAddress("fd00:ec2::254", "ipv6");
refused.addAddress("100.100.100.200");

/** GETs the operator's URL once. Redirects are not followed: they count as failures. Throws on anything but 2xx. */
export async function pingHeartbeat(url: string, signal?: AbortSignal): Promise<void> {
  const target = new URL(url);
  const literal = target.hostname.replace(/^\[|\]$/g, "");
  // A literal address never goes through `lookup`, so it is checked here.
  if (isIP(literal) && isRefusedAddress(literal)) throw refusal(target.host);
  const request = target.protocol === "https:" ? requestHttps : requestHttp;
  const deadline = AbortSignal.timeout(PING_MS_MAX);
  const status = await new Promise<number>((resolve, reject) => {
    const call = request(
      target,
      { lookup: checkedLookup, signal: signal ? AbortSignal.any([signal, deadline]) : deadline },
      (response) => {
        response.resume();
        response.on("error", reject);
        response.on("end", () => resolve(response.statusCode ?? 0));
      },
    );
    call.on("error", reject);
    call.end();
  });
  if (status < 200 || status > 299) throw new Error(`heartbeat URL answered ${status}`);
}

export function isRefusedAddress(address: string): boolean {
  return refused.check(address, isIP(address) === 6 ? "ipv6" : "ipv4");
}

/** The address that was checked is the one that is connected to: a second DNS answer cannot slip in between. */
const checkedLookup: LookupFunction = (hostname, options, callback) => {
  lookup(hostname, { ...options, all: true }, (error, addresses) => {
    if (error) return callback(error, "", 0);
    if (addresses.some(({ address }) => isRefusedAddress(address))) {
      return callback(refusal(hostname) as NodeJS.ErrnoException, "", 0);
    }
    if (options.all) return callback(null, addresses);
    callback(null, addresses[0]!.address, addresses[0]!.family);
  });
};

function refusal(host: string): RunError {
  return new RunError({
    op: "ping heartbeat URL",
    subject: host,
    message: "link-local and metadata addresses are refused",
    hint: "name the monitoring service's own URL",
    exit: EXIT.configuration,
  });
}
