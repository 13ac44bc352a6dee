import { clock, duration, percent, title } from "./format.ts";
import { ageS, freshness, nowMs, status } from "./live.ts";
import { Answers } from "./parts/answers.tsx";
import { Charts } from "./parts/charts.tsx";
import { Engines } from "./parts/engines.tsx";
import { Events } from "./parts/events.tsx";
import { Pipeline } from "./parts/pipeline.tsx";
import { Progress } from "./parts/progress.tsx";
import { Safety } from "./parts/safety.tsx";
import { Settings } from "./parts/settings.tsx";
import { Skipped } from "./parts/skipped.tsx";
import { toneOf } from "./tone.ts";

/** Read from top to bottom it answers: is it healthy, when is it done, what limits it, what should I do. */
export function Page() {
  const document_ = status.value;
  if (!document_) {
    return (
      <main class="waiting" aria-busy="true">
        <p>Waiting for the run…</p>
        <p class="quiet">This page connects by itself as soon as the supervisor answers.</p>
      </main>
    );
  }
  const { run, extraction } = document_;
  const { tokens, eta } = extraction;
  const done = tokens.total > 0 ? percent(tokens.done / tokens.total) : "";
  document.title = [done, eta.p50_s === null ? null : duration(eta.p50_s), title(run.state), run.name]
    .filter(Boolean)
    .join(" · ");
  return (
    <>
      <a class="skip" href="#main">
        Skip to the run
      </a>
      <header class="top">
        <h1>
          <bdi>{run.name}</bdi>
        </h1>
        <p class="where">
          <bdi>{run.address}</bdi>
        </p>
        <p class="facts">
          <span>
            on <bdi>{run.host}</bdi>
          </span>
          {run.part.count > 1 && (
            <span>
              part {run.part.index}/{run.part.count}
            </span>
          )}
          <span>{run.phase}</span>
          <span>up {duration((nowMs.value - Date.parse(run.started_at)) / 1_000)}</span>
          <Updated />
        </p>
      </header>
      <LostBanner />
      <main id="main" tabIndex={-1} class={`tone-${toneOf(run.state)}`} data-freshness={freshness.value}>
        <Answers document={document_} />
        <Progress document={document_} />
        <Pipeline document={document_} />
        <Charts document={document_} />
        <Engines document={document_} />
        <div class="columns">
          <div class="column">
            <Safety document={document_} />
            <Events />
          </div>
          <div class="column">
            <Settings document={document_} />
            <Skipped document={document_} />
          </div>
        </div>
      </main>
      <footer>
        forebay {document_.app_version} · <a href="/api/status">status as JSON</a> ·{" "}
        <a href="/api/schema.json">its schema</a> · <a href="/metrics">metrics</a>
      </footer>
    </>
  );
}

function Updated() {
  if (freshness.value === "final")
    return <span>ended {clock(status.value?.run.state_since ?? null, nowMs.value)}</span>;
  const age = ageS.value ?? 0;
  return (
    <span class="updated" data-freshness={freshness.value}>
      updated {age < 1.5 ? "1 s" : duration(age)} ago
    </span>
  );
}

function LostBanner() {
  if (freshness.value !== "lost") return null;
  return (
    <div class="banner" role="alert">
      <strong>These figures are old.</strong> Nothing has come from the supervisor for {duration(ageS.value)}.
      It may have stopped, or the connection to it is gone; this page goes on trying. On its machine,{" "}
      <code>forebay status {status.value?.run.address}</code> says which.
    </div>
  );
}
