import type { ComponentChildren } from "preact";
import type { StatusDocument } from "../../../src/run/status.ts";
import { clock, duration, money, percent, sentence, title, UNKNOWN } from "../format.ts";
import { nowMs } from "../live.ts";
import { isOver, MEANING, toneOf } from "../tone.ts";

/** The five seconds: healthy, done when, limited by what, and what to do. */
export function Answers({ document }: { document: StatusDocument }) {
  const { run, alerts } = document;
  const todo = todoOf(document);
  return (
    <section class="answers" aria-label="In short">
      <Answer term="State" class={`state tone-${toneOf(run.state)}`}>
        <strong class="big" data-testid="state">
          <span class="dot" aria-hidden="true" />
          {title(run.state)}
        </strong>
        <span class="more">
          <bdi>{sentence(run.reason ?? MEANING[run.state])}</bdi> For{" "}
          {duration((nowMs.value - Date.parse(run.state_since)) / 1_000)}.
        </span>
      </Answer>
      <Answer term={isOver(run.state) ? "Finished" : "Done in"}>
        <Finish document={document} />
      </Answer>
      <Answer term="Limited by">
        <strong class="big">{limitName(document)}</strong>
        <span class="more">
          {limitCause(document)}
          {lostTime(document)}
        </span>
      </Answer>
      {document.money && (
        <Answer term="Money so far">
          <strong class="big">{money(document.money.so_far, document.money.currency)}</strong>
          <span class="more">
            {document.money.to_go === null
              ? ""
              : `${money(document.money.to_go, document.money.currency)} to go, `}
            at {money(document.money.per_hour, document.money.currency)} an hour
          </span>
        </Answer>
      )}
      <Answer term="What to do" class="todo">
        <span class="advice">
          <bdi>{todo}</bdi>
        </span>
      </Answer>
      {alerts.length > 0 && (
        <ul class="alerts" aria-label="Alerts">
          {alerts.map(({ level, text, action }) => (
            <li key={text} class={`alert ${level}`}>
              <strong>{level === "error" ? "Error" : "Warning"}</strong> <bdi>{text}</bdi>{" "}
              {action && <bdi>{action}</bdi>}
            </li>
          ))}
        </ul>
      )}
    </section>
  );
}

function Answer(props: { term: string; class?: string; children: ComponentChildren }) {
  return (
    <div class={`answer ${props.class ?? ""}`}>
      <h2>{props.term}</h2>
      <p>{props.children}</p>
    </div>
  );
}

function Finish({ document: { run, extraction } }: { document: StatusDocument }) {
  const { p10_s, p50_s, p90_s, finish_at, reason } = extraction.eta;
  if (isOver(run.state)) {
    return (
      <>
        <strong class="big">{clock(run.state_since, nowMs.value)}</strong>
        <span class="more">
          {run.exit_code === null
            ? ""
            : `exit code ${run.exit_code}, after ${duration((Date.parse(run.state_since) - Date.parse(run.started_at)) / 1_000)}`}
        </span>
      </>
    );
  }
  if (p50_s === null) {
    return (
      <>
        <strong class="big">{UNKNOWN}</strong>
        <span class="more">
          <bdi>{sentence(reason)}</bdi>
        </span>
      </>
    );
  }
  return (
    <>
      <strong class="big" data-testid="eta">
        {duration(p50_s)}
      </strong>
      <span class="more">
        at {clock(finish_at, nowMs.value)}; likely between {duration(p10_s)} and {duration(p90_s)}
      </span>
    </>
  );
}

function limitName({ bottleneck: { stage, cause } }: StatusDocument): string {
  if (stage === null) return cause === "unknown" ? UNKNOWN : "Nothing";
  return stage === "compute" ? "The engines" : title(stage);
}

function limitCause({ bottleneck: { stage, cause } }: StatusDocument): string {
  const says =
    stage !== null && stage !== "compute" && cause !== stage && cause !== "none" && cause !== "unknown";
  return says ? `${title(cause)}. ` : "";
}

function lostTime({ engine_seconds_lost, stages }: StatusDocument): string {
  const compute = stages.find(({ name }) => name === "compute");
  if (engine_seconds_lost === null || !compute) return "Engine time lost waiting is not yet known.";
  const all = compute.busy + compute.blocked;
  const share = all > 0 ? ` (${percent(engine_seconds_lost / all)})` : "";
  return `${duration(engine_seconds_lost)} of engine time lost waiting${share}.`;
}

function todoOf({ run, extraction, bottleneck }: StatusDocument): string {
  const { action, state } = run;
  if (action) return action;
  if (state === "done" || state === "done_with_skips") return `forebay verify ${run.address}`;
  if (isOver(state)) return run.resume_command;
  if (bottleneck.cause === "unknown" || bottleneck.stage === null || bottleneck.stage === "compute") {
    return extraction.failed > 0 ? `${extraction.failed} samples failed: see the events below.` : "Nothing.";
  }
  return "Nothing is needed. What would make it faster stands below.";
}
