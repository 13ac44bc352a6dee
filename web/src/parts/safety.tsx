import type { ComponentChildren } from "preact";
import type { StatusDocument } from "../../../src/run/status.ts";
import { bytes, count, duration, rate, short, UNKNOWN } from "../format.ts";
import { nowMs } from "../live.ts";

const VERIFY = {
  checksum: "checksum, by a separate request",
  etag: "ETag and size (weaker: the store gives no checksum)",
  readback: "read back and compared",
} as const;

/** What would be lost if this machine died now, and how the store and the spool are doing. */
export function Safety({ document }: { document: StatusDocument }) {
  const { extraction, spool, s3, gate } = document;
  const { tokens } = extraction;
  const atRisk = tokens.in_engine + tokens.spooled + tokens.uploaded;
  const spoolShare = spool.budget_bytes > 0 ? Math.min(1, spool.bytes / spool.budget_bytes) : 0;
  return (
    <section class="panel" aria-labelledby="safety-title">
      <div class="panel-head">
        <h2 id="safety-title">Store and safety</h2>
      </div>
      <p>
        <b>{short(tokens.done)} tokens</b> are verified in the store. If this machine were lost now,{" "}
        <b>{short(atRisk)}</b> {atRisk === 1 ? "token" : "tokens"} would be computed again
        {tokens.rate > 0 && atRisk > 0 && ` (${duration(atRisk / tokens.rate)} of work)`}.
      </p>
      <dl class="facts-list">
        <Fact term="last commit">
          {extraction.last_commit_at
            ? `${duration((nowMs.value - Date.parse(extraction.last_commit_at)) / 1_000)} ago`
            : UNKNOWN}
        </Fact>
        <Fact term="spool" warn={spool.volatile || spool.quarantined > 0}>
          {bytes(spool.bytes)} of {bytes(spool.budget_bytes)}, {count(spool.files)} files
          <span class="meter" aria-hidden="true">
            <span style={{ width: `${spoolShare * 100}%` }} />
          </span>
          {spool.volatile && <span class="note">in memory: gone with the machine's power</span>}
          {spool.quarantined > 0 && <span class="note">{count(spool.quarantined)} in quarantine</span>}
        </Fact>
        <Fact term="disk free">{bytes(spool.disk_free_bytes)}</Fact>
        <Fact term="writes" warn={s3.publish_mode === "overwrite"}>
          {s3.publish_mode === null
            ? UNKNOWN
            : s3.publish_mode === "create-only"
              ? "create-only: nothing is ever overwritten"
              : "overwrite (weaker: the store ignores create-only)"}
        </Fact>
        <Fact term="verified by" warn={s3.verify_mode === "etag"}>
          {s3.verify_mode === null ? UNKNOWN : VERIFY[s3.verify_mode]}
        </Fact>
        <Fact term="failed checks" warn={s3.verify_failures > 0}>
          {count(s3.verify_failures)}
        </Fact>
        <Fact term="requests tried again">
          {count(s3.retries)}, {count(s3.throttled)} for SlowDown, {count(s3.lost_responses)} answers lost
        </Fact>
        <Fact term="upload">
          {rate(s3.mb_per_s)} MB/s over {count(s3.inflight)} of {count(s3.limit)}; p50{" "}
          {milliseconds(s3.p50_ms)}, p95 {milliseconds(s3.p95_ms)}
        </Fact>
        <Fact term="in the store">
          {bytes(extraction.bytes.verified)} of {bytes(extraction.bytes.total)}
        </Fact>
        <Fact term="gate" warn={gate.state === "failed" || gate.state === "skipped"}>
          {gate.state.replace("-", " ")}
          {gate.report && (
            <>
              : <bdi>{gate.report}</bdi>
            </>
          )}
        </Fact>
      </dl>
      {s3.notes.length > 0 && (
        <ul class="notes">
          {s3.notes.map((note) => (
            <li key={note}>
              <bdi>{note}</bdi>
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Fact(props: { term: string; warn?: boolean; children: ComponentChildren }) {
  return (
    <div class={props.warn ? "warned" : undefined}>
      <dt>{props.term}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

function milliseconds(value: number | null): string {
  return value === null ? UNKNOWN : `${Math.round(value)} ms`;
}
