import { formatBytes } from "../base/bytes.ts";
import { describeError, EXIT } from "../base/errors.ts";
import { type RunRecord, readRunRecord } from "../run/record.ts";
import { formatAddress, runInStore } from "../store/address.ts";
import { RUN_JSON } from "../store/keys.ts";
import { openStore } from "../store/open.ts";
import type { OpenedStore, StoreSpec } from "../store/store.ts";
import { printJson, printLine, say, tableLines } from "./io.ts";
import { withStore } from "./open-store.ts";
import { countText } from "./progress-lines.ts";
import { storePlace } from "./run-place.ts";
import type { VerbSpec } from "./verb.ts";

/** Runs lie one to three levels below what a person names: bucket, prefix, group. */
const DEPTH_MAX = 3;

export const ls: VerbSpec = {
  name: "ls",
  settings: "ls",
  summary: "the runs in a store",
  arguments: [["[store]", "s3://bucket, s3://bucket/prefix or file:directory"]],
  examples: ["forebay ls s3://bucket/prefix", "forebay ls file:demo-run", "forebay ls s3://bucket --json"],
  async run(call) {
    const { io, json } = call;
    const spec = storePlace(call);
    const runs = await withStore(spec, io, (store) => findRuns(store, spec, io.signal));
    if (json) {
      printJson(
        io,
        runs.map(({ address, record, fault }) => ({ address, fault, ...record })),
      );
      return EXIT.done;
    }
    for (const { address, fault } of runs) if (fault) say(io, `${address}: ${fault}`);
    if (runs.length === 0) printLine(io, `no run stands in ${formatAddress(spec)} (looked for */run.json)`);
    else {
      const head = ["address", "taps", "rows", "tokens", "bytes", "model"];
      const rows = runs.flatMap(({ address, record }) => (record ? [rowOf(address, record)] : []));
      for (const line of tableLines([head, ...rows], new Set([2, 3, 4]))) printLine(io, line);
    }
    return EXIT.done;
  },
};

interface FoundRun {
  address: string;
  record: RunRecord | null;
  /** Why its run.json could not be read. */
  fault: string | null;
}

async function findRuns(store: OpenedStore, spec: StoreSpec, signal: AbortSignal): Promise<FoundRun[]> {
  // The address may be a run itself.
  if (await store.head(RUN_JSON, signal)) return [await readRun(spec, signal)];
  const found: FoundRun[] = [];
  const walk = async (prefix: string, depth: number): Promise<void> => {
    for await (const name of store.folders(prefix, signal)) {
      const path = `${prefix}${name}`;
      if (await store.head(`${path}/${RUN_JSON}`, signal)) {
        const place = path.split("/").reduce(runInStore, spec);
        found.push(await readRun(place, signal));
      } else if (depth < DEPTH_MAX) await walk(`${path}/`, depth + 1);
    }
  };
  await walk("", 1);
  return found.sort((a, b) => a.address.localeCompare(b.address));
}

async function readRun(spec: StoreSpec, signal: AbortSignal): Promise<FoundRun> {
  const address = formatAddress(spec);
  const store = await openStore(spec);
  try {
    return { address, record: await readRunRecord(store, signal), fault: null };
  } catch (error) {
    return { address, record: null, fault: describeError(error) };
  } finally {
    store.close();
  }
}

function rowOf(address: string, { identity, totals, facts }: RunRecord): string[] {
  return [
    address,
    identity.taps.join(","),
    countText(totals.rows),
    countText(totals.tokens),
    formatBytes(totals.bytes),
    String(facts.model ?? facts.architecture ?? "-"),
  ];
}
