import { useSignal } from "@preact/signals";
import type { StatusDocument } from "../../../src/run/status.ts";
import { clock } from "../format.ts";
import { nowMs } from "../live.ts";

/** What this run was told, and how to go on elsewhere. */
export function Settings({ document: { run } }: { document: StatusDocument }) {
  return (
    <section class="panel" aria-labelledby="settings-title">
      <div class="panel-head">
        <h2 id="settings-title">Resume and settings</h2>
      </div>
      <p id="resume-hint">On any machine that reaches the store and the model, this goes on from here:</p>
      <Command text={run.resume_command} />
      <dl class="facts-list">
        <div>
          <dt>run directory</dt>
          <dd>
            <bdi>{run.run_directory}</bdi>
          </dd>
        </div>
        <div>
          <dt>started</dt>
          <dd>
            {clock(run.started_at, nowMs.value)}
            {run.resumed_from &&
              `, from ${run.resumed_from.samples.toLocaleString("en-US")} samples that were already there`}
          </dd>
        </div>
        <div>
          <dt>process</dt>
          <dd>
            {run.pid} on <bdi>{run.host}</bdi>
          </dd>
        </div>
        {Object.entries(run.settings).map(([name, value]) => (
          <div key={name}>
            <dt>
              <bdi>{name}</bdi>
            </dt>
            <dd>
              <bdi>{value === null ? "not set" : String(value)}</bdi>
            </dd>
          </div>
        ))}
      </dl>
    </section>
  );
}

function Command({ text }: { text: string }) {
  const said = useSignal("");
  const copy = async (event: { currentTarget: HTMLButtonElement }) => {
    const code = event.currentTarget.previousElementSibling;
    try {
      await navigator.clipboard.writeText(text);
      said.value = "copied";
    } catch {
      // Without leave to write to the clipboard the text is at least selected, one key press away.
      if (code) window.getSelection()?.selectAllChildren(code);
      said.value = "selected: press Ctrl C";
    }
    setTimeout(() => {
      said.value = "";
    }, 2_500);
  };
  return (
    <div class="command">
      <code>
        <bdi>{text}</bdi>
      </code>
      <button type="button" onClick={copy} aria-label="Copy the resume command">
        Copy
      </button>
      <span role="status" class="quiet">
        {said.value}
      </span>
    </div>
  );
}
