import type { StatusDocument } from "../../../src/run/status.ts";
import { clock, count, duration, percent, rate, short } from "../format.ts";
import { nowMs } from "../live.ts";
import { isOver } from "../tone.ts";

/** Where every token of the run is, and when the last one will be safe. */
export function Progress({ document: { run, extraction } }: { document: StatusDocument }) {
  const { tokens, batches } = extraction;
  const parts = [
    { name: "committed", tokens: tokens.done, hint: "verified in the store" },
    { name: "uploaded", tokens: tokens.uploaded, hint: "in the store, not yet verified" },
    { name: "spooled", tokens: tokens.spooled, hint: "on this machine's disk" },
    { name: "in engines", tokens: tokens.in_engine, hint: "being computed" },
  ];
  const share = (part: number) => (tokens.total > 0 ? part / tokens.total : 0);
  return (
    <section class="panel progress" aria-labelledby="progress-title">
      <div class="panel-head">
        <h2 id="progress-title">Progress</h2>
        <Rates run={run} extraction={extraction} />
      </div>
      {tokens.total === 0 ? (
        <p class="tally">How much there is to do is known once the plan is made.</p>
      ) : (
        <p class="tally">
          <strong data-testid="done-share">{percent(share(tokens.done), 1)}</strong>
          <span>
            {short(tokens.done)} of {short(tokens.total)} tokens
          </span>
          <span>
            {count(extraction.total_processed)} of {count(extraction.total)} samples
          </span>
          <span>
            {count(batches.committed)} of {count(batches.total)} batches
          </span>
        </p>
      )}
      <div
        class="stack"
        role="progressbar"
        aria-label="Tokens committed"
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.floor(share(tokens.done) * 100)}
        aria-valuetext={parts.map((part) => `${percent(share(part.tokens), 1)} ${part.name}`).join(", ")}
      >
        {parts.map((part, i) => (
          <span key={part.name} class={`part part-${i}`} style={{ width: `${share(part.tokens) * 100}%` }} />
        ))}
      </div>
      <ul class="legend">
        {parts.map((part, i) => (
          <li key={part.name} title={part.hint}>
            <span class={`swatch part-${i}`} aria-hidden="true" /> {part.name} <b>{short(part.tokens)}</b>
          </li>
        ))}
      </ul>
      {!isOver(run.state) && <TimeRail run={run} eta={extraction.eta} />}
    </section>
  );
}

/** Of what was committed: before the first commit there is none, and not 0. */
function Rates({ run, extraction }: Pick<StatusDocument, "run" | "extraction">) {
  if (extraction.last_commit_at === null) {
    return isOver(run.state) ? null : <p class="quiet">nothing committed yet in this session</p>;
  }
  return (
    <p class="quiet">
      <b>{rate(extraction.tokens.rate)}</b> tokens/s · <b>{rate(extraction.agg_rate)}</b> samples/s
    </p>
  );
}

/** From the start through now to the latest likely end, with the band in which the end lies. */
function TimeRail(props: { run: StatusDocument["run"]; eta: StatusDocument["extraction"]["eta"] }) {
  const { p10_s, p50_s, p90_s, finish_at } = props.eta;
  if (p10_s === null || p50_s === null || p90_s === null) return null;
  const elapsedS = Math.max(0, (nowMs.value - Date.parse(props.run.started_at)) / 1_000);
  const spanS = (elapsedS + p90_s) * 1.02;
  const at = (s: number) => `${(s / spanS) * 100}%`;
  const label = `Started ${clock(props.run.started_at, nowMs.value)}; done at ${clock(finish_at, nowMs.value)}, in ${duration(p10_s)} to ${duration(p90_s)}`;
  return (
    <div class="rail" role="img" aria-label={label}>
      <span class="rail-past" style={{ width: at(elapsedS) }} />
      <span class="rail-band" style={{ left: at(elapsedS + p10_s), width: at(p90_s - p10_s) }} />
      <span class="rail-end" style={{ left: at(elapsedS + p50_s) }} />
      <span class="rail-label rail-start-label">{clock(props.run.started_at, nowMs.value)}</span>
      <span class="rail-label rail-now-label" style={{ left: at(elapsedS) }}>
        now
      </span>
      <span class="rail-label rail-end-label">{clock(finish_at, nowMs.value)}</span>
    </div>
  );
}
