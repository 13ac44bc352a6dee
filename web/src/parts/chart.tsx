import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";

export interface Line {
  name: string;
  colour: "a" | "b" | "limit" | "bad";
  values: (number | null)[];
  /** The figure with its unit. */
  show: (value: number | null) => string;
  /** Drawn as bars against a scale of its own, without an axis: rare things beside a steady line. */
  bars?: boolean;
}

interface Frame {
  fromS: number;
  toS: number;
  t: number[];
}

export interface Unit {
  size: number;
  name: string;
}

interface ChartProps {
  title: string;
  lines: Line[];
  frame: Frame;
  /** What the axis counts in; default: the values themselves. */
  unit?: Unit;
  /** The axis counts things: it has no halves. */
  whole?: boolean;
}

/** The one cursor of all charts: an index into their common time axis, or null. */
const cursor = signal<number | null>(null);
const shown = new Set<uPlot>();
const SYNC_KEY = "run";
const HEIGHT_PX = 132;
const WHOLE_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500];

/** Moves the cursor by `step` points, or takes it away. */
export function moveCursor(step: number | null, points: number): void {
  const from = cursor.value ?? points - 1;
  const index =
    step === null
      ? null
      : Math.max(0, Math.min(points - 1, cursor.value === null && step < 0 ? from : from + step));
  for (const plot of shown) {
    const t = index === null ? undefined : plot.data[0][index];
    plot.setCursor(
      t === undefined
        ? { left: -10, top: -10 }
        : { left: plot.valToPos(t, "x"), top: plot.over.clientHeight / 2 },
      false,
    );
  }
  cursor.value = index;
}

/** One small chart: its figures at the cursor (else the newest) stand above it as text. */
export function Chart({ title, lines, frame, unit, whole }: ChartProps) {
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const dark = useDarkMode();
  const at = cursor.value !== null && cursor.value < frame.t.length ? cursor.value : null;
  const known = lines.some(({ values }) => values.some((value) => value !== null));

  // The plot lives as long as its colours; data and range go into it below.
  useEffect(() => {
    if (!box.current || !known) return;
    const made = new uPlot(optionsFor(box.current, { lines, unit, whole }), [[]], box.current);
    plot.current = made;
    shown.add(made);
    const watch = new ResizeObserver(([entry]) => {
      if (entry) made.setSize({ width: Math.floor(entry.contentRect.width), height: HEIGHT_PX });
    });
    watch.observe(box.current);
    return () => {
      watch.disconnect();
      shown.delete(made);
      made.destroy();
      plot.current = null;
    };
  }, [dark, known, unit?.name]);

  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    made.batch(() => {
      made.setData(
        [frame.t, ...lines.map(({ values }) => inUnits(values, unit))] as uPlot.AlignedData,
        false,
      );
      made.setScale("x", { min: frame.fromS, max: frame.toS });
    });
  }, [frame.t, frame.toS, frame.fromS, dark, known, unit?.name]);

  const readout = lines.map((line) => ({
    ...line,
    value: at === null ? newest(line.values) : (line.values[at] ?? null),
  }));
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        <span class="readout">
          {at !== null && (
            <time class="quiet">{new Date(frame.t[at]! * 1_000).toLocaleTimeString("en-GB")}</time>
          )}
          {readout.map(({ name, colour, show, value }) => (
            <span key={name}>
              <span class={`key line-${colour}`} aria-hidden="true" />
              {lines.length > 1 && <span class="quiet">{name} </span>}
              <b>{show(value)}</b>
            </span>
          ))}
        </span>
      </figcaption>
      {known ? (
        <div class="plot" ref={box} role="img" aria-label={describe(title, lines)} />
      ) : (
        <p class="no-plot quiet">Nothing measured in this time.</p>
      )}
    </figure>
  );
}

function optionsFor(
  box: HTMLElement,
  { lines, unit, whole }: Pick<ChartProps, "lines" | "unit" | "whole">,
): uPlot.Options {
  const style = getComputedStyle(box);
  const colourOf = (name: string) => style.getPropertyValue(`--${name}`).trim();
  const axis: Partial<uPlot.Axis> = {
    stroke: colourOf("ink-2"),
    font: "11px system-ui, sans-serif",
    ticks: { show: false },
  };
  return {
    width: Math.max(50, Math.floor(box.clientWidth)),
    height: HEIGHT_PX,
    legend: { show: false },
    padding: [8, 16, 0, 0],
    cursor: {
      sync: { key: SYNC_KEY, setSeries: false },
      drag: { x: false, y: false },
      points: { size: 6 },
      y: false,
    },
    scales: {
      x: { time: true, auto: false },
      y: { range: (_, __, max) => [0, niceTop(max)] },
      own: { range: (_, __, max) => [0, Math.max(1, (max ?? 0) * 3)] },
    },
    axes: [
      {
        ...axis,
        size: 22,
        gap: 4,
        space: 64,
        grid: { show: false },
        // One at the very left would stand on the other axis's lowest figure.
        values: (plot, ticks) => ticks.map((t) => (plot.valToPos(t, "x") < 24 ? "" : timeLabel(t, ticks))),
      },
      {
        ...axis,
        size: 52,
        gap: 6,
        space: 28,
        ...(whole ? { incrs: WHOLE_STEPS } : {}),
        grid: { stroke: colourOf("line"), width: 1 },
        values: (_, ticks) => ticks.map((tick) => axisLabel(tick, ticks, unit)),
      },
    ],
    series: [
      {},
      ...lines.map(({ colour, bars }): uPlot.Series => {
        const stroke = colourOf(`line-${colour}`);
        return {
          scale: bars ? "own" : "y",
          paths: bars ? uPlot.paths.bars?.({ size: [1, 6] }) : undefined,
          stroke,
          width: colour === "limit" ? 1 : 1.5,
          dash: colour === "limit" ? [4, 4] : undefined,
          fill: bars ? stroke : colour === "a" && lines.length === 1 ? `${stroke}1f` : undefined,
          points: { show: false },
          spanGaps: false,
        };
      }),
    ],
    hooks: {
      setCursor: [
        (plot) => {
          const index = plot.cursor.idx ?? null;
          const inside = (plot.cursor.left ?? -1) >= 0;
          cursor.value = inside ? index : null;
        },
      ],
    },
  };
}

function niceTop(max: number | null): number {
  return max === null || max <= 0 ? 1 : max * 1.12;
}

function timeLabel(t: number, ticks: number[]): string {
  const at = new Date(t * 1_000);
  const spanS = (ticks.at(-1) ?? t) - (ticks[0] ?? t);
  if (spanS > 2 * 86_400) return at.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  if (spanS < 5 * 60) return at.toLocaleTimeString("en-GB");
  return at.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}

function inUnits(values: (number | null)[], unit: Unit | undefined): (number | null)[] {
  return unit ? values.map((value) => (value === null ? null : value / unit.size)) : values;
}

function axisLabel(value: number, ticks: number[], unit: Unit | undefined): string {
  if (unit) return `${Number(value.toPrecision(3))} ${unit.name}`;
  const isLarge = (ticks.at(-1) ?? 0) >= 10_000 && value > 0;
  return isLarge ? `${Number((value / 1_000).toPrecision(3))} k` : String(Number(value.toPrecision(3)));
}

function newest(values: (number | null)[]): number | null {
  return values.at(-1) ?? null;
}

/** What a picture of the chart says, for who does not see it. */
function describe(title: string, lines: Line[]): string {
  const parts = lines.map(({ name, values, show }) => {
    const numbers = values.filter((value) => value !== null);
    if (numbers.length === 0) return `${name} unknown`;
    return `${name} now ${show(newest(values))}, between ${show(Math.min(...numbers))} and ${show(Math.max(...numbers))}`;
  });
  return `${title}: ${parts.join("; ")}`;
}

const darkMode = signal(matchMedia("(prefers-color-scheme: dark)").matches);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", ({ matches }) => {
  darkMode.value = matches;
});

function useDarkMode(): boolean {
  return darkMode.value;
}
