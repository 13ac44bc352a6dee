import type { EngineStatus, StatusDocument } from "../../../src/run/status.ts";
import { bytes, count, duration, percent, rate, UNKNOWN } from "../format.ts";
import { nowMs } from "../live.ts";
import { Scroll } from "./scroll.tsx";

/** Slowest first: the engine that needs a look is the first one seen. */
export function Engines({ document: { engines, extraction } }: { document: StatusDocument }) {
  const slowestFirst = [...engines].sort((a, b) => speed(a) - speed(b) || a.shard - b.shard);
  const fastest = Math.max(1, ...engines.map((engine) => engine.tokens_per_s ?? 0));
  const anyGpu = engines.some((engine) => engine.gpu);
  // Usually all are of one kind: said once, and not in every row.
  const [device, ...others] = new Set(engines.map((engine) => engine.device));
  const common = others.length === 0 ? device : null;
  const hasShare = engines.some((engine) => engine.flops_share !== null);
  const perEngine = (shard: number) => extraction.shards.find((each) => each.shard === shard);
  return (
    <section class="panel" aria-labelledby="engines-title">
      <div class="panel-head">
        <h2 id="engines-title">Engines</h2>
        <p class="quiet">
          {common && (
            <>
              on <bdi>{common}</bdi>,{" "}
            </>
          )}
          slowest first{hasShare && "; of peak: the model's arithmetic against the card's dense bf16 peak"}
        </p>
      </div>
      <Scroll label="Table of engines">
        <table class="engines">
          <thead>
            <tr>
              <th scope="col">engine</th>
              <th scope="col">state</th>
              <th scope="col" class="number">
                tokens/s
              </th>
              <th scope="col" class="number">
                of peak
              </th>
              <th scope="col" class="number">
                tokens in it
              </th>
              <th scope="col" class="number">
                samples
              </th>
              <th scope="col" class="number">
                batches
              </th>
              {anyGpu && (
                <>
                  <th scope="col">GPU</th>
                  <th scope="col" class="number">
                    memory
                  </th>
                  <th scope="col" class="number">
                    power
                  </th>
                  <th scope="col" class="number">
                    temp.
                  </th>
                </>
              )}
              <th scope="col" class="number">
                restarts
              </th>
              <th scope="col" class="number">
                last commit
              </th>
            </tr>
          </thead>
          <tbody>
            {slowestFirst.map((engine) => (
              <Row
                key={engine.shard}
                device={common ? null : engine.device}
                {...{ engine, fastest, anyGpu, own: perEngine(engine.shard) }}
              />
            ))}
            {engines.length === 0 && (
              <tr>
                <td colSpan={anyGpu ? 13 : 9} class="quiet">
                  No engine has started yet.
                </td>
              </tr>
            )}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

interface RowProps {
  engine: EngineStatus;
  /** Where it is not the same for all. */
  device: string | null;
  fastest: number;
  anyGpu: boolean;
  own: StatusDocument["extraction"]["shards"][number] | undefined;
}

function Row({ engine, device, fastest, anyGpu, own }: RowProps) {
  const { gpu } = engine;
  const since = engine.last_commit_at
    ? `${duration((nowMs.value - Date.parse(engine.last_commit_at)) / 1_000)} ago`
    : UNKNOWN;
  return (
    <>
      <tr>
        <th scope="row">
          {engine.shard} <bdi class="quiet">{device ?? engine.name}</bdi>
        </th>
        <td>
          <span class={`chip engine-${engine.state}`}>{engine.state}</span>
        </td>
        <td class="number metered">
          {rate(engine.tokens_per_s)}
          <Meter share={(engine.tokens_per_s ?? 0) / fastest} />
        </td>
        <td class="number">{percent(engine.flops_share)}</td>
        <td class="number">{count(engine.tokens_total)}</td>
        <td class="number">{count(own?.processed ?? null)}</td>
        <td class="number">{count(own?.batch ?? null)}</td>
        {anyGpu && (
          <>
            <td class="metered">
              {gpu ? `${gpu.index}: ${gpu.util === null ? UNKNOWN : percent(gpu.util / 100)}` : UNKNOWN}
              <Meter share={(gpu?.util ?? 0) / 100} />
            </td>
            <td class="number">
              {bytes(gpu?.mem_used ?? null)} <span class="quiet">of {bytes(gpu?.mem_total ?? null)}</span>
            </td>
            <td class="number">{unit(gpu?.power ?? null, "W")}</td>
            <td class="number">{unit(gpu?.temp ?? null, "°C")}</td>
          </>
        )}
        <td class="number">{count(engine.restarts)}</td>
        <td class="number">{since}</td>
      </tr>
      {engine.last_error && (
        <tr class="said">
          <td colSpan={anyGpu ? 13 : 9}>
            <bdi>{engine.last_error}</bdi>
          </td>
        </tr>
      )}
    </>
  );
}

function Meter({ share }: { share: number }) {
  return (
    <span class="meter" aria-hidden="true">
      <span style={{ width: `${Math.min(1, Math.max(0, share)) * 100}%` }} />
    </span>
  );
}

function speed(engine: EngineStatus): number {
  if (engine.state === "failed" || engine.state === "restarting") return -1;
  return engine.tokens_per_s ?? 0;
}

function unit(value: number | null, name: string): string {
  return value === null ? UNKNOWN : `${Math.round(value)} ${name}`;
}
