import { mkdirSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";
import type { Log } from "../base/log.ts";
import type { RowsFile } from "../dataset/rows-file.ts";
import { refusedRows } from "../engine/check-states.ts";
import type { Engine } from "../engine/engine.ts";
import type { CheckResult, ExtractSample, Loaded } from "../engine/protocol.ts";
import type { PackShape } from "../pack/layout.ts";
import type { Plan } from "../plan/plan.ts";

/** What is checked: token ids of a few samples, ids in the model's vocabulary. */
export type GateSample = Pick<ExtractSample, "row" | "ids">;

export interface GateReport {
  /** "skipped": the engine can do no check at these taps, so nothing is proven. */
  state: "passed" | "failed" | "skipped";
  results: CheckResult[];
  /** One line a check, for a person. */
  text: string;
}

const NOTHING_CHECKED =
  "nothing was checked: this engine can prove nothing at these taps (vllm: only the last block's). " +
  "`forebay check --against onnx` or `--against transformers` compares it with an engine that can";

/** Enough for every kind of mistake to show, little enough to cost seconds on a GPU. */
const SAMPLES_MAX = 4;
const TOKENS_MAX = 256;

/** A few samples of different lengths, spread over the plan; long ones by their beginning. */
export function gateSamples(plan: Plan, rows: RowsFile): GateSample[] {
  const count = Math.min(SAMPLES_MAX, plan.rows.length);
  return Array.from({ length: count }, (_, i) => {
    const place = Math.floor((i * plan.rows.length) / count);
    const row = plan.rows[place]!;
    const tokens = Math.min(TOKENS_MAX, plan.tokens[place]!);
    return { row, ids: Array.from(rows.ids(row).subarray(0, tokens)) };
  });
}

/**
 * The gate (engine-protocol.md): the engine extracts `samples` as in a run, then holds the STORED bytes against the
 * model itself, by every check that it can do. Reads and writes one scratch file in `directory`.
 */
export async function runGate(
  engine: Engine,
  loaded: Loaded,
  samples: readonly GateSample[],
  options: { shape: Pick<PackShape, "taps" | "hidden">; directory: string; log: Log },
): Promise<GateReport> {
  const { shape, directory, log } = options;
  mkdirSync(directory, { recursive: true, mode: 0o700 });
  const file = join(directory, `gate-${engine.label}.bin`);
  const placed = placeSamples(samples, shape);
  writeFileSync(file, "", { mode: 0o600 });
  truncateSync(file, placed.bytes);
  try {
    const answer = await engine.extract({ attempt: 1, file, samples: placed.samples });
    const bad = [
      ...answer.failed.map(({ row, message }) => ({ row, reason: message })),
      ...refusedRows(placed.samples, answer.samples, shape),
    ];
    if (bad.length > 0) throw refused(engine.label, `row ${bad[0]!.row}: ${bad[0]!.reason}`);
    if (loaded.checks.length === 0) {
      log.warn("gate.nothing-checked", { engine: engine.label, report: NOTHING_CHECKED });
      return { state: "skipped", results: [], text: NOTHING_CHECKED };
    }
    const { results } = await engine.check({ kinds: loaded.checks, file, samples: placed.samples });
    const state = results.every(({ ok }) => ok) ? "passed" : "failed";
    const report: GateReport = { state, results, text: results.map(describe).join("\n") };
    log.info("gate.checked", { engine: engine.label, state, report: report.text });
    return report;
  } finally {
    rmSync(file, { force: true });
  }
}

/** Throws exit 9 with the tap and the reason unless the report is clean. */
export function assertGate(report: GateReport, engine: string): void {
  const failed = report.results.find(({ ok }) => !ok);
  if (failed) throw refused(engine, describe(failed));
}

/** `samples` one after another in a file, and its size. */
export function placeSamples(
  samples: readonly GateSample[],
  { taps, hidden }: Pick<PackShape, "taps" | "hidden">,
) {
  let bytes = 0;
  const placed = samples.map((sample): ExtractSample => {
    const offset = bytes;
    bytes += sample.ids.length * taps * hidden * 2;
    return { ...sample, offset };
  });
  return { samples: placed, bytes };
}

function describe({ kind, ok, tap, measured, limit, control, message }: CheckResult): string {
  const number = (value: number | null) => (value === null ? "-" : value.toPrecision(2));
  const against = control === null ? "" : `, one block off ${number(control)}`;
  const where = tap === null ? "" : ` at block ${tap}`;
  return `${kind}: ${ok ? "ok" : "FAILED"}${where} (difference ${number(measured)}, limit ${number(limit)}${against}) ${message}`.trim();
}

function refused(engine: string, message: string): RunError {
  return new RunError({
    op: "check the engine's states",
    subject: engine,
    message: `the gate failed: ${message}`,
    safe: "nothing was stored",
    hint: "the states would train a drafter that serves badly; --no-gate runs without this check, and run.json says so",
    exit: EXIT.integrity,
  });
}
