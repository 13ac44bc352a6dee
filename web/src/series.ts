import type { HistoryColumns } from "../../src/monitor/history.ts";

/** Seconds without a point after which a line breaks off, by how old (and so how thinned) the points there are. */
function gapS(ageS: number): number {
  return ageS < 610 ? 15 : ageS < 6.1 * 3_600 ? 40 : 200;
}

/**
 * `columns` with a row of nulls in each stretch that nobody measured, so that no line is drawn over it. Where the
 * answer was thinned to fit a screen, a gap is what is much longer than the usual step.
 */
export function withGaps(columns: HistoryColumns, nowS: number): HistoryColumns {
  const { t } = columns;
  const steps = t.slice(1).map((at, i) => at - t[i]!);
  const usualS = [...steps].sort((a, b) => a - b)[Math.floor(steps.length * 0.9)] ?? 0;
  const gapAfter = new Set<number>();
  for (const [i, stepS] of steps.entries()) {
    if (stepS > Math.max(gapS(nowS - t[i + 1]!), 3 * usualS)) gapAfter.add(i);
  }
  if (gapAfter.size === 0) return columns;
  const spread = <T>(values: T[], between: (i: number) => T) =>
    values.flatMap((value, i) => (gapAfter.has(i) ? [value, between(i)] : [value]));
  return Object.fromEntries(
    Object.entries(columns).map(([name, values]) => [
      name,
      name === "t" ? spread(t, (i) => (t[i]! + t[i + 1]!) / 2) : spread<number | null>(values, () => null),
    ]),
  ) as HistoryColumns;
}
