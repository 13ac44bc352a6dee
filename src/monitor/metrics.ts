import { RUN_STATES, type RunCounters, type StatusDocument } from "../run/status.ts";

/** https://prometheus.io/docs/instrumenting/exposition_formats/ */
export const METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8";

type Labels = Record<string, string | number>;
type Sample = [labels: Labels, value: number];

/** Labels must stay few however many ways a server finds to fail; the rest is counted under "other". */
const REASONS_MAX = 32;

/**
 * The run as Prometheus text. What is unknown is left out, never 0. Counters are of this process: they start
 * again with it, as `rate()` expects.
 */
export function prometheusText(document: StatusDocument, counters: RunCounters): string {
  const { extraction, spool, stages } = document;
  const byShard = (pick: (shard: RunCounters["tokensByShard"][number]) => number): Sample[] =>
    counters.tokensByShard.map((shard) => [{ shard: shard.shard }, pick(shard)]);
  const lastCommitMs = Date.parse(extraction.last_commit_at ?? "");

  return [
    family("forebay_run_state", "gauge", "1 for the state the run is in, 0 for the others.", [
      ...RUN_STATES.map((state): Sample => [{ state }, state === document.run.state ? 1 : 0]),
    ]),
    family("forebay_samples_processed_total", "counter", "Samples finished by each engine.", [
      ...byShard((shard) => shard.samples),
    ]),
    family("forebay_tokens_processed_total", "counter", "Tokens finished by each engine.", [
      ...byShard((shard) => shard.tokens),
    ]),
    family("forebay_batches_committed_total", "counter", "Batches of each engine that the store confirmed.", [
      ...byShard((shard) => shard.committed),
    ]),
    family(
      "forebay_engine_peak_ratio",
      "gauge",
      "FLOPs of the model done by an engine, as a share of its cards' dense bf16 peak.",
      [
        ...document.engines.flatMap(({ shard, flops_share }): Sample[] =>
          flops_share === null ? [] : [[{ shard }, flops_share]],
        ),
      ],
    ),
    family("forebay_stage_seconds_total", "counter", "Seconds of a stage's slots: busy, starved, blocked.", [
      ...stages.flatMap((stage): Sample[] =>
        (["busy", "starved", "blocked"] as const).map((state) => [
          { stage: stage.name, state },
          stage[state],
        ]),
      ),
    ]),
    family("forebay_stage_queue_items", "gauge", "Batches waiting before a stage.", [
      ...stages.map((stage): Sample => [{ stage: stage.name }, stage.queue]),
    ]),
    family("forebay_spool_bytes", "gauge", "Bytes of the spool in use or reserved.", [[{}, spool.bytes]]),
    family("forebay_spool_limit_bytes", "gauge", "The spool's budget.", [[{}, spool.budget_bytes]]),
    family("forebay_s3_requests_total", "counter", "Requests of uploads by operation and outcome.", [
      ...counters.s3Requests.map(({ op, outcome, count }): Sample => [{ op, outcome }, count]),
    ]),
    histogram("forebay_s3_request_duration_seconds", "Time of the requests of uploads.", counters.s3Seconds),
    family("forebay_s3_retries_total", "counter", "Uploads tried again, by reason.", [
      ...boundedReasons(counters.s3Retries),
    ]),
    family("forebay_uploaded_bytes_total", "counter", "Bytes of packs that the store accepted.", [
      [{}, extraction.bytes.uploaded],
    ]),
    family("forebay_last_commit_timestamp_seconds", "gauge", "When a batch was last committed.", [
      ...(Number.isNaN(lastCommitMs) ? [] : [[{}, lastCommitMs / 1_000] as Sample]),
    ]),
  ].join("");
}

function family(name: string, type: "gauge" | "counter", help: string, samples: Sample[]): string {
  return [
    `# HELP ${name} ${help}`,
    `# TYPE ${name} ${type}`,
    ...samples.map(([labels, value]) => `${name}${labelText(labels)} ${value}`),
    "",
  ].join("\n");
}

function histogram(name: string, help: string, seconds: RunCounters["s3Seconds"]): string {
  return [
    `# HELP ${name} ${help}`,
    `# TYPE ${name} histogram`,
    ...seconds.boundsS.map((bound, index) => `${name}_bucket{le="${bound}"} ${seconds.counts[index] ?? 0}`),
    `${name}_bucket{le="+Inf"} ${seconds.count}`,
    `${name}_sum ${seconds.sumS}`,
    `${name}_count ${seconds.count}`,
    "",
  ].join("\n");
}

function boundedReasons(retries: RunCounters["s3Retries"]): Sample[] {
  const counts = new Map<string, number>();
  for (const { reason, count } of retries) {
    const label = counts.has(reason) || counts.size < REASONS_MAX ? reason : "other";
    counts.set(label, (counts.get(label) ?? 0) + count);
  }
  return [...counts].map(([reason, count]) => [{ reason }, count]);
}

function labelText(labels: Labels): string {
  const pairs = Object.entries(labels).map(([name, value]) => `${name}="${escapeLabel(String(value))}"`);
  return pairs.length === 0 ? "" : `{${pairs.join(",")}}`;
}

function escapeLabel(value: string): string {
  return value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll('"', '\\"');
}
