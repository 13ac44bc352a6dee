import type { StatusDocument } from "../../../src/run/status.ts";
import { count } from "../format.ts";
import { Scroll } from "./scroll.tsx";

/** Rows that will not be in the dataset, and why: nothing is left out in silence. */
export function Skipped({ document: { extraction } }: { document: StatusDocument }) {
  const { skipped, skipped_rows: rows, failed } = extraction;
  const reasons = new Map<string, number>();
  for (const { reason } of rows) reasons.set(reason, (reasons.get(reason) ?? 0) + 1);
  const commonest = [...reasons].sort((a, b) => b[1] - a[1]);
  return (
    <section class="panel" aria-labelledby="skipped-title">
      <div class="panel-head">
        <h2 id="skipped-title">Skipped rows</h2>
        <p class="quiet">
          <b>{count(skipped)}</b> skipped{failed > 0 && `, ${count(failed)} failed`}
        </p>
      </div>
      {rows.length === 0 ? (
        <p class="quiet">{skipped === 0 ? "None so far." : "They are not named here."}</p>
      ) : (
        <>
          <ul class="reasons">
            {commonest.slice(0, 5).map(([reason, times]) => (
              <li key={reason}>
                <b>{count(times)}</b> <bdi>{reason}</bdi>
              </li>
            ))}
          </ul>
          <Scroll label="Table of skipped rows" tall>
            <table class="narrow">
              <thead>
                <tr>
                  <th scope="col" class="number">
                    row
                  </th>
                  <th scope="col">reason</th>
                </tr>
              </thead>
              <tbody>
                {rows.map(({ row, reason }) => (
                  <tr key={`${row} ${reason}`}>
                    <td class="number">{count(row)}</td>
                    <td>
                      <bdi>{reason}</bdi>
                    </td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
          {skipped > rows.length && <p class="quiet">{count(rows.length)} of them.</p>}
        </>
      )}
    </section>
  );
}
