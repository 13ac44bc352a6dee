import type { StatusDocument } from "../../../src/run/status.ts";
import { count, megabytesPerS, percent } from "../format.ts";
import { stages } from "../live.ts";
import type { StageWindow } from "../window.ts";

const WHAT: Record<StageWindow["name"], string> = {
  compute: "engines make states",
  pack: "checked and named",
  disk: "written to the spool",
  upload: "sent to the store",
  verify: "asked for again",
};

/** The way of a batch, with the stage that limits it marked, and the verdict in words. */
export function Pipeline({ document: { bottleneck } }: { document: StatusDocument }) {
  const limited = bottleneck.stage !== null;
  return (
    <section class="panel pipeline" aria-labelledby="pipeline-title">
      <div class="panel-head">
        <h2 id="pipeline-title">What limits it</h2>
        <ul class="legend">
          <li>
            <span class="swatch busy" aria-hidden="true" /> busy
          </li>
          <li>
            <span class="swatch blocked" aria-hidden="true" /> waits for the next stage
          </li>
          <li>
            <span class="swatch starved" aria-hidden="true" /> waits for work
          </li>
        </ul>
      </div>
      <p class="verdict" data-testid="verdict">
        {limited && (
          <strong>
            {bottleneck.stage}
            {bottleneck.cause !== bottleneck.stage && <span> · {bottleneck.cause}</span>}
          </strong>
        )}
        <bdi>{bottleneck.advice}</bdi>
        {limited && bottleneck.confidence < 0.6 && <span class="quiet"> (not yet sure)</span>}
      </p>
      <ol class="stages">
        {stages.value.map((stage) => (
          <Stage key={stage.name} stage={stage} limits={stage.name === bottleneck.stage} />
        ))}
      </ol>
    </section>
  );
}

function Stage({ stage, limits }: { stage: StageWindow; limits: boolean }) {
  const text = `busy ${percent(stage.busy)}, waits for the next stage ${percent(stage.blocked)}, waits for work ${percent(stage.starved)}`;
  return (
    <li class={`stage ${limits ? "limits" : ""}`}>
      <h3>
        {stage.name}
        {limits && <span class="tag">limit</span>}
      </h3>
      <p class="quiet what">{WHAT[stage.name]}</p>
      <div class="shares" role="img" aria-label={text} title={text}>
        <span class="busy" style={{ width: `${stage.busy * 100}%` }} />
        <span class="blocked" style={{ width: `${stage.blocked * 100}%` }} />
        <span class="starved" style={{ width: `${stage.starved * 100}%` }} />
      </div>
      <dl>
        <div>
          <dt>busy</dt>
          <dd>{percent(stage.busy)}</dd>
        </div>
        <div>
          <dt>queue</dt>
          <dd>
            {count(stage.queue)}
            {stage.capacity !== null && <span class="quiet"> of {count(stage.capacity)}</span>}
          </dd>
        </div>
        <div>
          <dt>rate</dt>
          <dd>{megabytesPerS(stage.rate)}</dd>
        </div>
      </dl>
    </li>
  );
}
