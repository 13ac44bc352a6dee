import { signal, useSignal } from "@preact/signals";
import type { HistoryColumns } from "../../../src/monitor/history.ts";
import type { StatusDocument } from "../../../src/run/status.ts";
import { bytes, duration, percent, rate, UNKNOWN } from "../format.ts";
import { history, historyVersion, nowMs } from "../live.ts";
import { withGaps } from "../series.ts";
import { Chart, type Line, moveCursor, type Unit } from "./chart.tsx";
import { HistoryTable } from "./history-table.tsx";

const RANGES = [
  { name: "10 min", seconds: 600 },
  { name: "1 h", seconds: 3_600 },
  { name: "6 h", seconds: 6 * 3_600 },
  { name: "all", seconds: 7 * 86_400 },
] as const;

/** Null until someone chooses: then the shortest that holds the run so far. */
const chosenS = signal<number | null>(null);

const perSecond = (value: number | null) => rate(value);
const megabytes = (value: number | null) => (value === null ? UNKNOWN : `${rate(value)} MB/s`);
const milliseconds = (value: number | null) => (value === null ? UNKNOWN : `${rate(value)} ms`);

/** Six small charts over one time axis and one cursor; the same figures as a table for who prefers it. */
export function Charts({ document: { run, spool } }: { document: StatusDocument }) {
  const asTable = useSignal(false);
  // Read so that a new point draws anew.
  historyVersion.value;
  const nowS = nowMs.value / 1_000;
  // A run that was resumed is older than its process.
  const beganS = Math.min(Date.parse(run.started_at) / 1_000, history.beganS() ?? nowS);
  const rangeS =
    chosenS.value ?? RANGES.find(({ seconds }) => nowS - beganS <= seconds)?.seconds ?? 7 * 86_400;
  const columns = withGaps(history.since(nowS - rangeS, 1_200), nowS);
  // A run younger than the range fills the width; a minute at least, or the first points would fly by.
  const fromS = Math.max(nowS - rangeS, Math.min(columns.t[0] ?? nowS, nowS - 60));
  const frame = { fromS, toS: nowS, t: columns.t };
  const spoolUnit =
    spool.budget_bytes >= 4 * 2 ** 30 ? { size: 2 ** 30, name: "GiB" } : { size: 2 ** 20, name: "MiB" };
  const budget = columns.t.map((_, i) => (columns.spool_bytes[i] === null ? null : spool.budget_bytes));

  const charts: { title: string; lines: Line[]; unit?: Unit; whole?: boolean }[] = [
    { title: "Tokens/s", lines: [line("tokens/s", "a", columns, "tokens_per_s", perSecond)] },
    {
      title: "Produced and uploaded",
      lines: [
        line("produced", "a", columns, "produced_mb_s", megabytes),
        line("uploaded", "b", columns, "uploaded_mb_s", megabytes),
      ],
    },
    {
      title: "Spool",
      unit: spoolUnit,
      lines: [
        line("in use", "a", columns, "spool_bytes", (value) =>
          bytes(value === null ? null : Math.round(value)),
        ),
        { name: "budget", colour: "limit", values: budget, show: bytes },
      ],
    },
    {
      title: "Store answers",
      lines: [
        line("p50", "a", columns, "s3_p50_ms", milliseconds),
        line("p95", "b", columns, "s3_p95_ms", milliseconds),
        { ...line("errors/s", "bad", columns, "s3_errors_per_s", perSecond), bars: true },
      ],
    },
    {
      title: "Uploads in flight",
      whole: true,
      lines: [
        line("in flight", "a", columns, "inflight", perSecond),
        line("limit", "limit", columns, "limit", perSecond),
      ],
    },
    {
      title: "GPUs busy",
      lines: [
        line("mean", "a", columns, "gpu_util", (value) => percent(value === null ? null : value / 100)),
      ],
    },
  ];

  return (
    <section class="panel charts" aria-labelledby="charts-title">
      <div class="panel-head">
        <h2 id="charts-title">The last {duration(nowS - fromS)}</h2>
        <div class="controls">
          <fieldset class="segments">
            <legend class="hidden">Time shown</legend>
            {RANGES.map(({ name, seconds }) => (
              <label key={name}>
                <input
                  type="radio"
                  name="range"
                  checked={seconds === rangeS}
                  onChange={() => {
                    chosenS.value = seconds;
                  }}
                />
                <span>{name}</span>
              </label>
            ))}
          </fieldset>
          <label class="check">
            <input
              type="checkbox"
              checked={asTable.value}
              onChange={(event) => {
                asTable.value = event.currentTarget.checked;
              }}
            />
            <span>as a table</span>
          </label>
        </div>
      </div>
      {asTable.value ? (
        <HistoryTable columns={columns} budgetBytes={spool.budget_bytes} />
      ) : (
        // biome-ignore lint/a11y/useSemanticElements: a fieldset is for form fields
        <div
          class="chart-grid"
          role="group"
          aria-label="Charts. Arrow keys move the cursor through all of them."
          // biome-ignore lint/a11y/noNoninteractiveTabindex: the cursor must be reachable without a mouse
          tabIndex={0}
          onKeyDown={(event) => {
            const step = { ArrowLeft: -1, ArrowRight: 1, Home: -columns.t.length, End: columns.t.length }[
              event.key
            ];
            if (step === undefined && event.key !== "Escape") return;
            event.preventDefault();
            moveCursor(step ?? null, columns.t.length);
          }}
        >
          {charts.map((chart) => (
            <Chart key={chart.title} {...chart} frame={frame} />
          ))}
        </div>
      )}
    </section>
  );
}

function line(
  name: string,
  colour: Line["colour"],
  columns: HistoryColumns,
  field: Exclude<keyof HistoryColumns, "t">,
  show: Line["show"],
): Line {
  return { name, colour, values: columns[field], show };
}
