import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { scriptedRun } from "../bench/support/scripted-run.mjs";
import { prometheusText } from "../src/monitor/metrics.ts";
import { RUN_STATES, type RunCounters, type StatusDocument } from "../src/run/status.ts";

const PYTHON_PACKAGES = fileURLToPath(new URL("../.cache/s3", import.meta.url));

/** Reads exposition text with the Prometheus project's own parser; a JSON list of its families. */
const PARSE = `
import json, sys
from prometheus_client.parser import text_string_to_metric_families
print(json.dumps([
    {"name": f.name, "type": f.type, "samples": [[s.name, s.labels, s.value] for s in f.samples]}
    for f in text_string_to_metric_families(sys.stdin.read())
]))
`;

interface Family {
  name: string;
  type: string;
  samples: [string, Record<string, string>, number][];
}

function parsed(text: string): Map<string, Family> {
  if (!existsSync(join(PYTHON_PACKAGES, "prometheus_client"))) {
    throw new Error("the Prometheus parser is missing: node scripts/setup.mjs installs it");
  }
  const { status, stdout, stderr } = spawnSync("python3", ["-c", PARSE], {
    input: text,
    encoding: "utf8",
    env: { ...process.env, PYTHONPATH: PYTHON_PACKAGES },
  });
  expect(stderr).toBe("");
  expect(status).toBe(0);
  return new Map((JSON.parse(stdout) as Family[]).map((family) => [family.name, family]));
}

const run = scriptedRun({ nowMs: () => 1_764_547_200_000 });

function metricsOf(
  edit: (document: StatusDocument) => void = () => {},
  editCounters: (counters: RunCounters) => void = () => {},
) {
  const document = run.snapshot();
  const counters = run.counters();
  edit(document);
  editCounters(counters);
  return parsed(prometheusText(document, counters));
}

test("a real Prometheus parser finds every promised family, with its type and labels", () => {
  const families = metricsOf();
  const found = [...families.values()].map(({ name, type, samples }) => [
    name,
    type,
    Object.keys(samples[0]?.[1] ?? {}).sort(),
  ]);
  expect(found).toEqual([
    ["forebay_run_state", "gauge", ["state"]],
    ["forebay_samples_processed", "counter", ["shard"]],
    ["forebay_tokens_processed", "counter", ["shard"]],
    ["forebay_batches_committed", "counter", ["shard"]],
    ["forebay_engine_peak_ratio", "gauge", ["shard"]],
    ["forebay_stage_seconds", "counter", ["stage", "state"]],
    ["forebay_stage_queue_items", "gauge", ["stage"]],
    ["forebay_spool_bytes", "gauge", []],
    ["forebay_spool_limit_bytes", "gauge", []],
    ["forebay_s3_requests", "counter", ["op", "outcome"]],
    ["forebay_s3_request_duration_seconds", "histogram", ["le"]],
    ["forebay_s3_retries", "counter", ["reason"]],
    ["forebay_uploaded_bytes", "counter", []],
    ["forebay_last_commit_timestamp_seconds", "gauge", []],
  ]);
  // The parser drops a counter's suffix; the text carries it.
  expect(families.get("forebay_uploaded_bytes")!.samples[0]![0]).toBe("forebay_uploaded_bytes_total");
});

test("exactly one state is 1", () => {
  for (const state of ["starting", "done_with_skips"] as const) {
    const { samples } = metricsOf((document) => {
      document.run.state = state;
    }).get("forebay_run_state")!;
    expect(samples.filter(([, , value]) => value === 1)).toEqual([["forebay_run_state", { state }, 1]]);
    expect(samples).toHaveLength(RUN_STATES.length);
  }
});

test("the histogram's buckets rise to its count", () => {
  const { samples } = metricsOf().get("forebay_s3_request_duration_seconds")!;
  const buckets = samples.filter(([name]) => name.endsWith("_bucket"));
  const values = buckets.map(([, , value]) => value);
  expect(values).toEqual([...values].sort((a, b) => a - b));
  expect(buckets.at(-1)![1]).toEqual({ le: "+Inf" });
  expect(buckets.at(-1)![2]).toBe(samples.find(([name]) => name.endsWith("_count"))![2]);
});

test("what is unknown is left out and not 0", () => {
  const families = metricsOf((document) => {
    document.extraction.last_commit_at = null;
    document.stages = [];
    document.engines = document.engines.map((engine) => ({ ...engine, flops_share: null }));
  });
  expect(families.get("forebay_last_commit_timestamp_seconds")!.samples).toEqual([]);
  expect(families.get("forebay_engine_peak_ratio")?.samples ?? []).toEqual([]);
  expect(families.get("forebay_stage_seconds")?.samples ?? []).toEqual([]);
});

test("a run that has not opened its store yet still gives text that parses", () => {
  const families = metricsOf(undefined, (counters) => {
    counters.s3Requests = [];
    counters.s3Retries = [];
    counters.tokensByShard = [];
    counters.s3Seconds = { boundsS: [], counts: [], sumS: 0, count: 0 };
  });
  expect(families.get("forebay_s3_request_duration_seconds")!.samples).toHaveLength(3);
});

test("hostile reasons stay one label value each, and there are never many of them", () => {
  const hostile = 'quote " backslash \\ newline \n forebay_run_state{state="done"} 1';
  const { samples } = metricsOf(undefined, (counters) => {
    counters.s3Retries = [
      { reason: hostile, count: 3 },
      ...Array.from({ length: 500 }, (_, i) => ({ reason: `r${i}`, count: 1 })),
    ];
  }).get("forebay_s3_retries")!;
  expect(samples[0]).toEqual(["forebay_s3_retries_total", { reason: hostile }, 3]);
  expect(samples.length).toBeLessThanOrEqual(33);
  expect(samples.reduce((sum, [, , value]) => sum + value, 0)).toBe(503);
});
