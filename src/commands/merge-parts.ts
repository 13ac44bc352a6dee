import type { RunState, StatusDocument } from "../run/status.ts";

/** What of a run stands in its store, or is planned. */
export interface StoredCounts {
  batches: number;
  samples: number;
  tokens: number;
  /** Of pack objects. */
  bytes: number;
}

/** By a LIST of the store and its plan: above every heartbeat, which may be a minute old and knows one part only. */
export interface StoredAmounts {
  committed: StoredCounts;
  total: StoredCounts;
}

const ENDED: ReadonlySet<RunState> = new Set(["stopped", "preempted", "done", "done_with_skips", "failed"]);
const SKIPPED_TAIL = 200;
const EVENTS_TAIL = 100;

/** How much each state needs a person; the highest of all parts is the run's. */
const NEED: Record<RunState, number> = {
  done: 0,
  done_with_skips: 1,
  running: 2,
  starting: 3,
  stopping: 4,
  stopped: 5,
  preempted: 6,
  degraded: 7,
  stalled: 8,
  lost: 9,
  blocked: 10,
  failed: 11,
};

export function hasEnded(state: RunState): boolean {
  return ENDED.has(state);
}

/** Those of the newest division into parts, and whoever of another one still goes on. */
export function presentParts(documents: readonly StatusDocument[]): StatusDocument[] {
  const newest = newestOf(documents);
  return documents.filter(
    ({ run }) => run.part.count === newest?.run.part.count || !(ENDED.has(run.state) || run.state === "lost"),
  );
}

/**
 * All parts as one document. Rates, engines, spools and connections add up; what is committed and what there is to do
 * come from the store, where it could be asked. The state is that of the part which most needs a person.
 */
export function mergeParts(parts: readonly StatusDocument[], amounts: StoredAmounts | null): StatusDocument {
  const worst = parts.reduce((a, b) => (NEED[b.run.state] > NEED[a.run.state] ? b : a));
  const newest = newestOf(parts)!;
  const merged = structuredClone(worst);
  merged.generated_at = newest.generated_at;
  merged.heartbeat_at = newest.heartbeat_at;
  mergeExtraction(merged, parts, amounts);
  if (parts.length === 1 && worst.run.part.count === 1) return merged;

  const missing = missingParts(parts, merged);
  mergeRun(merged, { parts, worst, missing });
  mergeWork(merged, parts);
  mergeStore(merged, parts);
  merged.extraction.eta = mergedEta(parts, missing);
  merged.extraction.eta_hours = hours(merged.extraction.eta.p50_s);
  merged.money = mergedMoney(parts, merged.extraction.eta_hours);
  return merged;
}

function mergeExtraction(
  { extraction }: StatusDocument,
  parts: readonly StatusDocument[],
  amounts: StoredAmounts | null,
): void {
  const sum = sumOver(parts.map((part) => part.extraction));
  const committed = amounts?.committed ?? {
    batches: sum((e) => e.batches.committed),
    samples: sum((e) => e.total_processed),
    tokens: sum((e) => e.tokens.done),
    bytes: sum((e) => e.bytes.verified),
  };
  const total = amounts?.total ?? {
    batches: sum((e) => e.batches.total),
    samples: sum((e) => e.total),
    tokens: sum((e) => e.tokens.total),
    bytes: sum((e) => e.bytes.total),
  };
  const shards = parts.flatMap((part) => part.extraction.shards);
  Object.assign(extraction, {
    total_processed: committed.samples,
    total: total.samples,
    agg_rate: sum((e) => e.agg_rate),
    hs_local: sum((e) => e.hs_local),
    shards: renumbered(shards).map((shard) => ({
      ...shard,
      total: total.samples,
      total_batches: total.batches,
    })),
    tokens: {
      done: committed.tokens,
      // What was committed since the heartbeat is not on its way any more.
      ...onItsWay(sum, total.tokens - committed.tokens),
      total: total.tokens,
      rate: sum((e) => e.tokens.rate),
    },
    batches: {
      committed: committed.batches,
      total: total.batches,
      in_flight: Math.min(
        sum((e) => e.batches.in_flight),
        total.batches - committed.batches,
      ),
    },
    bytes: {
      produced: sum((e) => e.bytes.produced),
      uploaded: sum((e) => e.bytes.uploaded),
      verified: committed.bytes,
      total: total.bytes,
    },
    skipped: sum((e) => e.skipped),
    skipped_rows: parts.flatMap((part) => part.extraction.skipped_rows).slice(-SKIPPED_TAIL),
    failed: sum((e) => e.failed),
    last_commit_at: newestTime(parts.map((part) => part.extraction.last_commit_at)),
  } satisfies Partial<StatusDocument["extraction"]>);
}

type Sum<T> = (of: (part: T) => number) => number;

function onItsWay(sum: Sum<StatusDocument["extraction"]>, left: number) {
  const uploaded = Math.min(
    sum((e) => e.tokens.uploaded),
    left,
  );
  const spooled = Math.min(
    sum((e) => e.tokens.spooled),
    left - uploaded,
  );
  const in_engine = Math.min(
    sum((e) => e.tokens.in_engine),
    left - uploaded - spooled,
  );
  return { uploaded, spooled, in_engine };
}

/** Parts of whom there is no word, where the work is not done without them. */
function missingParts(parts: readonly StatusDocument[], { extraction }: StatusDocument): string[] {
  if (extraction.batches.committed >= extraction.batches.total) return [];
  const { count } = newestOf(parts)!.run.part;
  const known = new Set(parts.filter(({ run }) => run.part.count === count).map(({ run }) => run.part.index));
  return Array.from({ length: count }, (_, i) => i + 1)
    .filter((index) => !known.has(index))
    .map((index) => `${index}/${count}`);
}

function mergeRun(
  merged: StatusDocument,
  { parts, worst, missing }: { parts: readonly StatusDocument[]; worst: StatusDocument; missing: string[] },
): void {
  const { run } = merged;
  const named = ({ run: { part } }: StatusDocument, text: string) =>
    `part ${part.index}/${part.count}: ${text}`;
  if (run.reason !== null) run.reason = named(worst, run.reason);
  run.started_at = parts.map((part) => part.run.started_at).sort()[0]!;
  const resumed = parts.flatMap((part) => part.run.resumed_from ?? []);
  const sum = sumOver(resumed);
  run.resumed_from =
    resumed.length === 0 ? null : { batches: sum((r) => r.batches), samples: sum((r) => r.samples) };
  merged.alerts = [
    ...parts.flatMap((part) => part.alerts.map((alert) => ({ ...alert, text: named(part, alert.text) }))),
    ...missing.map((part) => ({
      level: "warn" as const,
      text: `nobody works on part ${part}`,
      action: commandOf(run.resume_command, part),
    })),
  ];
  merged.events_tail = parts
    .flatMap((part) => part.events_tail)
    .sort((a, b) => (a.at < b.at ? 1 : -1))
    .slice(0, EVENTS_TAIL);
  const allEnded = parts.every((part) => ENDED.has(part.run.state));
  if (!allEnded || missing.length > 0) run.exit_code = null;
  const [absent] = missing;
  if (absent === undefined || !allEnded || NEED[run.state] >= NEED.stopped) return;
  run.state = "stopped";
  run.reason = `nobody works on part ${missing.join(", ")}`;
  run.action = commandOf(run.resume_command, absent);
}

/** The same command for another part, which has a spool and a run directory of its own. */
function commandOf(resumeCommand: string, part: string): string {
  return resumeCommand
    .replaceAll(/ --(?:spool|run-dir) (?:'(?:[^']|'\\'')*'|[^\s']+)/g, "")
    .replace(/ --part \d+\/\d+/, ` --part ${part}`);
}

function mergeWork(merged: StatusDocument, parts: readonly StatusDocument[]): void {
  merged.engines = renumbered(parts.flatMap((part) => part.engines));
  merged.stages = merged.stages.map((stage) => {
    const same = parts.flatMap((part) => part.stages.filter(({ name }) => name === stage.name));
    const sum = sumOver(same);
    return {
      name: stage.name,
      slots: sum((s) => s.slots),
      busy: sum((s) => s.busy),
      starved: sum((s) => s.starved),
      blocked: sum((s) => s.blocked),
      queue: sum((s) => s.queue),
      capacity: null,
      rate: same.some(({ rate }) => rate !== null) ? sum((s) => s.rate ?? 0) : null,
    };
  });
  const limited = parts
    .filter(({ run, bottleneck }) => !ENDED.has(run.state) && bottleneck.stage !== null)
    .sort((a, b) => b.bottleneck.confidence - a.bottleneck.confidence)[0];
  if (limited) {
    const { index, count } = limited.run.part;
    merged.bottleneck = {
      ...limited.bottleneck,
      advice: `part ${index}/${count}: ${limited.bottleneck.advice}`,
    };
  }
  const lost = parts.flatMap((part) => part.engine_seconds_lost ?? []);
  merged.engine_seconds_lost = lost.length === 0 ? null : sumOver(lost)((seconds) => seconds);
}

function mergeStore({ s3, spool }: StatusDocument, parts: readonly StatusDocument[]): void {
  const sum = sumOver(parts);
  const most = (values: (number | null)[]) => {
    const known = values.filter((value) => value !== null);
    return known.length === 0 ? null : Math.max(...known);
  };
  Object.assign(s3, {
    inflight: sum((p) => p.s3.inflight),
    limit: sum((p) => p.s3.limit),
    mb_per_s: sum((p) => p.s3.mb_per_s),
    p50_ms: most(parts.map((p) => p.s3.p50_ms)),
    p95_ms: most(parts.map((p) => p.s3.p95_ms)),
    retries: sum((p) => p.s3.retries),
    throttled: sum((p) => p.s3.throttled),
    lost_responses: sum((p) => p.s3.lost_responses),
    verify_failures: sum((p) => p.s3.verify_failures),
    notes: [...new Set(parts.flatMap((p) => p.s3.notes))],
  } satisfies Partial<StatusDocument["s3"]>);
  Object.assign(spool, {
    bytes: sum((p) => p.spool.bytes),
    budget_bytes: sum((p) => p.spool.budget_bytes),
    files: sum((p) => p.spool.files),
    // Disks of several machines have no common free space.
    disk_free_bytes: null,
    volatile: parts.some((p) => p.spool.volatile),
    quarantined: sum((p) => p.spool.quarantined),
  } satisfies Partial<StatusDocument["spool"]>);
}

/** The run is done when its last part is; unknown where one of them goes nowhere. */
function mergedEta(parts: readonly StatusDocument[], missing: string[]): StatusDocument["extraction"]["eta"] {
  const none = (reason: string) => ({ p10_s: null, p50_s: null, p90_s: null, finish_at: null, reason });
  if (missing.length > 0) return none(`nobody works on part ${missing.join(", ")}`);
  const going = parts.filter(({ run }) => run.state !== "done" && run.state !== "done_with_skips");
  const last = going.reduce<StatusDocument | null>(
    (a, b) => (a && (a.extraction.eta.p50_s ?? 0) >= (b.extraction.eta.p50_s ?? 0) ? a : b),
    null,
  );
  if (!last) return parts[0]!.extraction.eta;
  const name = ({ run: { part } }: StatusDocument) => `part ${part.index}/${part.count}`;
  const still = going.find(({ run }) => ENDED.has(run.state) || run.state === "lost");
  if (still) return none(`${name(still)} is ${still.run.state}`);
  const unsure = going.find(({ extraction }) => extraction.eta.p50_s === null);
  if (unsure) return none(`${name(unsure)}: ${unsure.extraction.eta.reason}`);
  return { ...last.extraction.eta, reason: `${name(last)}: ${last.extraction.eta.reason}` };
}

function mergedMoney(parts: readonly StatusDocument[], etaHours: number | null): StatusDocument["money"] {
  const priced = parts.flatMap(({ money }) => money ?? []);
  const [first] = priced;
  if (!first || priced.some(({ currency }) => currency !== first.currency)) return null;
  const sum = sumOver(priced);
  const perHour = sum((money) => money.per_hour);
  return {
    currency: first.currency,
    per_hour: perHour,
    so_far: sum((money) => money.so_far),
    to_go: etaHours === null ? null : etaHours * perHour,
  };
}

function newestOf(documents: readonly StatusDocument[]): StatusDocument | undefined {
  return documents.toSorted((a, b) => (a.generated_at < b.generated_at ? 1 : -1))[0];
}

function newestTime(times: (string | null)[]): string | null {
  return (
    times
      .filter((time) => time !== null)
      .sort()
      .at(-1) ?? null
  );
}

function renumbered<T extends { shard: number }>(list: T[]): T[] {
  return list.map((item, shard) => ({ ...item, shard }));
}

function sumOver<T>(parts: readonly T[]): Sum<T> {
  return (of) => parts.reduce((sum, part) => sum + of(part), 0);
}

function hours(seconds: number | null): number | null {
  return seconds === null ? null : seconds / 3600;
}
