/**
 * A run that is only told: a StatusSource whose figures move as a real one's do (a 27B model on four cards behind a
 * link that is a little too thin). For tests of the monitor, its bench, and work on the page.
 */

const TOKENS_TOTAL = 306_118_310;
const SAMPLES_TOTAL = 913_786;
const BYTES_A_TOKEN = 51_200;
const BATCH_BYTES = 64 * 2 ** 20;
const TOKENS_PER_S = 15_400;
const FLOPS_A_TOKEN = 51e9;
/** Of one card. */
const PEAK_FLOPS = 500e12;
const GIB = 2 ** 30;

/**
 * @param {import("./scripted-run.mjs").ScriptedRunOptions} options
 * @returns {import("./scripted-run.mjs").ScriptedRun}
 */
export function scriptedRun(options) {
  const {
    nowMs,
    engines = 4,
    elapsedHours = 2.4,
    state = "running",
    edit = (document) => document,
  } = options;
  const startedMs = nowMs() - elapsedHours * 3.6e6;

  const usual = usualEvents((agoS) => new Date(nowMs() - agoS * 1_000).toISOString());
  const snapshot = () => {
    const elapsedS = (nowMs() - startedMs) / 1_000;
    const swing = wave(elapsedS);
    const tokensPerS = TOKENS_PER_S * (1 + 0.03 * swing);
    const engineTokensPerS = (shard) => (tokensPerS / engines) * (shard === 2 ? 0.91 : 1.03 - 0.01 * shard);
    const tokens = Math.min(TOKENS_TOTAL, Math.floor(elapsedS * TOKENS_PER_S));
    const share = tokens / TOKENS_TOTAL;
    const leftS = (TOKENS_TOTAL - tokens) / TOKENS_PER_S;
    const batchesTotal = Math.ceil((TOKENS_TOTAL * BYTES_A_TOKEN) / BATCH_BYTES);
    const batches = Math.floor(share * batchesTotal);
    const spoolBytes = Math.round((126 + 9 * swing) * GIB);
    const at = (agoS) => new Date(nowMs() - agoS * 1_000).toISOString();
    return edit({
      schema_version: 1,
      app_version: "0.1.0",
      generated_at: at(0),
      heartbeat_at: at(0),
      heartbeat_interval_s: 60,
      run: {
        id: "4f1c09a2be77d310",
        name: "qwen3.6-27b-chat",
        address: "s3://drafter-states/runs/qwen3.6-27b-chat",
        part: { index: 1, count: 1 },
        state,
        phase: "extracting",
        state_since: at(elapsedS - 210),
        reason: null,
        action: null,
        host: "gpu-07",
        pid: 48_213,
        started_at: new Date(startedMs).toISOString(),
        resumed_from: { batches: 31_207, samples: 122_480 },
        page_url: "http://127.0.0.1:8080",
        run_directory: "/data/forebay/runs/qwen3.6-27b-chat",
        resume_command:
          "forebay resume s3://drafter-states/runs/qwen3.6-27b-chat --model /models/Qwen3.6-27B --endpoint https://objects.example.net",
        exit_code: null,
        settings: {
          engine: "transformers",
          engines,
          taps: "1,16,31,46,61",
          dataset: "/data/conversations-914k",
          spool: "/nvme/forebay",
          "spool-bytes": "200GiB",
          "pack-bytes": "64MiB",
          uploads: "auto",
          order: "shuffled",
          endpoint: "https://objects.example.net",
          region: "us-east-1",
          "price-per-hour": 9.96,
        },
      },
      extraction: {
        total_processed: Math.floor(share * SAMPLES_TOTAL),
        total: SAMPLES_TOTAL,
        agg_rate: tokensPerS / 335,
        eta_hours: leftS / 3_600,
        eta: {
          p10_s: leftS * 0.93,
          p50_s: leftS,
          p90_s: leftS * 1.09,
          finish_at: new Date(nowMs() + leftS * 1_000).toISOString(),
          reason: "upload",
        },
        hs_local: Math.floor(spoolBytes / BATCH_BYTES),
        shards: Array.from({ length: engines }, (_, shard) => ({
          shard,
          processed: Math.floor((share * SAMPLES_TOTAL) / engines) - shard * 311,
          total: SAMPLES_TOTAL,
          rate_per_sec: tokensPerS / 335 / engines,
          batch: Math.floor(batches / engines),
          total_batches: batchesTotal,
        })),
        tokens: {
          done: tokens,
          uploaded: Math.min(TOKENS_TOTAL - tokens, 210_000),
          spooled: Math.min(TOKENS_TOTAL - tokens, Math.floor(spoolBytes / BYTES_A_TOKEN)),
          in_engine: Math.min(TOKENS_TOTAL - tokens, engines * 9_800),
          total: TOKENS_TOTAL,
          rate: tokensPerS,
        },
        batches: { committed: batches, total: batchesTotal, in_flight: engines * 8 },
        bytes: {
          produced: tokens * BYTES_A_TOKEN + spoolBytes,
          uploaded: tokens * BYTES_A_TOKEN + 200_000_000,
          verified: tokens * BYTES_A_TOKEN,
          total: TOKENS_TOTAL * BYTES_A_TOKEN,
        },
        skipped: 214,
        skipped_rows: Array.from({ length: 60 }, (_, i) => ({
          row: 1_021 + i * 7_411,
          reason: i % 3 === 0 ? "no tokens" : "longer than 32,768 tokens",
        })),
        failed: 0,
        last_commit_at: at(0.4),
        flops_per_token: FLOPS_A_TOKEN,
      },
      engines: Array.from({ length: engines }, (_, shard) => ({
        shard,
        name: `transformers-${shard}`,
        state: "running",
        pid: 48_300 + shard,
        device: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        devices: [`GPU-${shard}`],
        tokens_done: 4_100 + shard * 700,
        tokens_total: 9_800,
        tokens_per_s: engineTokensPerS(shard),
        restarts: shard === 2 ? 1 : 0,
        last_commit_at: at(0.4 + shard),
        last_error: shard === 2 ? "CUDA out of memory: tried a forward of 16,384 tokens; 8,192 now" : null,
        flops_share: (engineTokensPerS(shard) * FLOPS_A_TOKEN) / PEAK_FLOPS,
        gpu: {
          index: shard,
          name: "NVIDIA RTX PRO 6000 Blackwell Server Edition",
          util: Math.round(91 - 3 * shard + 4 * wave(elapsedS + shard * 40)),
          mem_used: (71.2 + shard) * GIB,
          mem_total: 95.6 * GIB,
          power: Math.round(512 + 30 * wave(elapsedS + shard * 17)),
          temp: 68 + shard,
        },
      })),
      stages: [
        {
          name: "compute",
          slots: engines,
          ...seconds(elapsedS, engines, [0.7, 0.01, 0.29]),
          queue: 12,
          capacity: null,
          rate: 788e6,
        },
        {
          name: "pack",
          slots: 1,
          ...seconds(elapsedS, 1, [0.07, 0.74, 0.19]),
          queue: 0,
          capacity: 8,
          rate: 788e6,
        },
        {
          name: "disk",
          slots: engines,
          ...seconds(elapsedS, engines, [0.24, 0.4, 0.36]),
          queue: 3,
          capacity: null,
          rate: 788e6,
        },
        {
          name: "upload",
          slots: 64,
          ...seconds(elapsedS, 64, [0.98, 0.02, 0]),
          queue: 1_931,
          capacity: null,
          rate: 787e6,
        },
        {
          name: "verify",
          slots: 16,
          ...seconds(elapsedS, 16, [0.21, 0.79, 0]),
          queue: 1,
          capacity: 64,
          rate: 787e6,
        },
      ],
      bottleneck: {
        stage: "upload",
        cause: "bandwidth",
        confidence: 0.9,
        advice: `The link carries 788 MB/s however many connections are open: 3 of the ${engines} engines would keep it full. A faster link, or fewer taps.`,
      },
      engine_seconds_lost: elapsedS * engines * 0.3,
      spool: {
        directory: "/nvme/forebay",
        bytes: spoolBytes,
        budget_bytes: 200 * GIB,
        files: Math.floor(spoolBytes / BATCH_BYTES),
        disk_free_bytes: 640 * GIB,
        volatile: false,
        quarantined: 0,
      },
      s3: {
        inflight: 61 + Math.round(2 * swing),
        limit: 64,
        mb_per_s: 787 + 24 * swing,
        p50_ms: 402 + 20 * swing,
        p95_ms: 911 + 130 * swing,
        retries: 61,
        throttled: 12,
        lost_responses: 2,
        publish_mode: "create-only",
        verify_mode: "checksum",
        verify_failures: 0,
        notes: [],
      },
      money: {
        currency: "USD",
        per_hour: 9.96,
        so_far: (elapsedS / 3_600) * 9.96,
        to_go: (leftS / 3_600) * 9.96,
      },
      gate: { state: "passed", report: "injection 2.1e-6, padding 0, greedy 64 of 64 tokens" },
      training: null,
      alerts: [],
      events_tail: options.events ?? usual,
    });
  };

  return {
    snapshot,
    counters: () => counters(snapshot(), engines),
    fillHistory: (history, hours) => {
      const endS = nowMs() / 1_000 - 1;
      for (let t = endS - hours * 3_600; t < endS; t += t < endS - 600 ? 10 : 1) {
        const swing = wave(t - startedMs / 1_000);
        const stalled = t > endS - hours * 1_800 && t < endS - hours * 1_800 + 240;
        history.add({
          t,
          tokens_per_s: TOKENS_PER_S * (stalled ? 0.4 : 1 + 0.03 * swing),
          produced_mb_s: stalled ? 320 : 788 + 18 * swing,
          uploaded_mb_s: (stalled ? 310 : 786) + 22 * wave(t * 1.7),
          spool_bytes: Math.round((126 + 9 * swing) * GIB),
          s3_p50_ms: 402 + 20 * swing + (stalled ? 600 : 0),
          s3_p95_ms: 911 + 130 * swing + (stalled ? 2_100 : 0),
          s3_errors_per_s: stalled ? 3 + swing : 0,
          inflight: stalled ? 22 : 61 + Math.round(2 * swing),
          limit: stalled ? 24 : 64,
          gpu_util: stalled ? 41 : 88 + 4 * swing,
        });
      }
    },
  };
}

/** Smooth and without a period that the eye finds, -1 to 1. */
function wave(s) {
  return (Math.sin(s / 37) + Math.sin(s / 11.3) + Math.sin(s / 173)) / 3;
}

function seconds(elapsedS, slots, [busy, starved, blocked]) {
  const all = elapsedS * slots;
  return { busy: all * busy, starved: all * starved, blocked: all * blocked };
}

function usualEvents(at) {
  const event = (agoS, level, name, fields) => ({ at: at(agoS), level, event: name, fields });
  return [
    event(8_460, "info", "run.resumed", { batches: 31_207, samples: 122_480 }),
    event(8_440, "info", "gate.passed", { injection: 2.1e-6, greedy: "64 of 64" }),
    event(5_100, "warn", "engine.oom", { engine: 2, forward_tokens: 16_384, next: 8_192 }),
    event(5_093, "info", "engine.restarted", { engine: 2, attempt: 1 }),
    event(4_320, "warn", "store.throttled", { answers: 12, limit: 24 }),
    event(4_080, "info", "uploads.limit", { from: 24, to: 64 }),
    event(1_800, "info", "rows.skipped", { rows: 3, reason: "longer than 32,768 tokens" }),
    event(12, "info", "status.published", { part: "1/1" }),
  ];
}

function counters(document, engines) {
  const puts = document.extraction.batches.committed;
  const boundsS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];
  const shares = [0, 0.01, 0.12, 0.71, 0.96, 0.995, 0.999, 1, 1];
  return {
    s3Requests: [
      { op: "put", outcome: "ok", count: puts },
      { op: "put", outcome: "retried", count: document.s3.retries },
      { op: "head", outcome: "ok", count: puts },
      { op: "list", outcome: "ok", count: 256 },
    ],
    s3Retries: [
      { reason: "SlowDown", count: document.s3.throttled },
      { reason: "ECONNRESET", count: document.s3.retries - document.s3.throttled },
    ],
    s3Seconds: {
      boundsS,
      counts: shares.map((share) => Math.floor(share * puts)),
      sumS: puts * 0.43,
      count: puts,
    },
    tokensByShard: Array.from({ length: engines }, (_, shard) => ({
      shard,
      tokens: Math.floor(document.extraction.tokens.done / engines),
      samples: document.extraction.shards[shard]?.processed ?? 0,
      batches: document.extraction.shards[shard]?.batch ?? 0,
      committed: document.extraction.shards[shard]?.batch ?? 0,
    })),
  };
}
