import type { HistoryColumns } from "../../../src/monitor/history.ts";
import { bytes, percent, rate } from "../format.ts";
import { Scroll } from "./scroll.tsx";

const ROWS_MAX = 40;

/** The charts' figures as rows, newest first. */
export function HistoryTable({ columns, budgetBytes }: { columns: HistoryColumns; budgetBytes: number }) {
  const every = Math.max(1, Math.ceil(columns.t.length / ROWS_MAX));
  const rows = columns.t.map((_, i) => i).filter((i) => (columns.t.length - 1 - i) % every === 0);
  return (
    <Scroll label="Table of what the charts show" tall>
      <table>
        <thead>
          <tr>
            {[
              "time",
              "tokens/s",
              "produced MB/s",
              "uploaded MB/s",
              `spool, of ${bytes(budgetBytes)}`,
              "p50 ms",
              "p95 ms",
              "errors/s",
              "in flight",
              "limit",
              "GPUs busy",
            ].map((name, i) => (
              <th scope="col" key={name} class={i === 0 ? undefined : "number"}>
                {name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.reverse().map((i) => (
            <tr key={columns.t[i]}>
              <th scope="row">{new Date(columns.t[i]! * 1_000).toLocaleTimeString("en-GB")}</th>
              <td class="number">{rate(columns.tokens_per_s[i] ?? null)}</td>
              <td class="number">{rate(columns.produced_mb_s[i] ?? null)}</td>
              <td class="number">{rate(columns.uploaded_mb_s[i] ?? null)}</td>
              <td class="number">{bytes(whole(columns.spool_bytes[i]))}</td>
              <td class="number">{rate(columns.s3_p50_ms[i] ?? null)}</td>
              <td class="number">{rate(columns.s3_p95_ms[i] ?? null)}</td>
              <td class="number">{rate(columns.s3_errors_per_s[i] ?? null)}</td>
              <td class="number">{rate(columns.inflight[i] ?? null)}</td>
              <td class="number">{rate(columns.limit[i] ?? null)}</td>
              <td class="number">{percent(share(columns.gpu_util[i]))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}

function whole(value: number | null | undefined): number | null {
  return value === null || value === undefined ? null : Math.round(value);
}

function share(value: number | null | undefined): number | null {
  return value === null || value === undefined ? null : value / 100;
}
