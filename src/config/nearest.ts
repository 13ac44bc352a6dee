/**
 * The known name nearest to a mistyped one, or null where none is near enough to be meant: at most a third of
 * the letters wrong, and never more than three.
 */
export function nearestName(typed: string, known: Iterable<string>): string | null {
  let best: string | null = null;
  let bestDistance = Math.min(3, Math.max(1, Math.floor(typed.length / 3))) + 1;
  for (const name of known) {
    const distance = editDistance(typed.toLowerCase(), name.toLowerCase());
    if (distance < bestDistance) {
      best = name;
      bestDistance = distance;
    }
  }
  return best;
}

/** "did you mean X?" for a hint, or undefined where nothing is near. */
export function didYouMean(typed: string, known: Iterable<string>, prefix = ""): string | undefined {
  const near = nearestName(typed, known);
  return near === null ? undefined : `did you mean ${prefix}${near}?`;
}

/** Insertions, deletions, replacements and swaps of neighbours (optimal string alignment). */
export function editDistance(a: string, b: string): number {
  let beforePrevious: number[] = [];
  let previous = Array.from({ length: b.length + 1 }, (_, j) => j);
  for (let i = 1; i <= a.length; i += 1) {
    const row = [i];
    for (let j = 1; j <= b.length; j += 1) {
      const same = a[i - 1] === b[j - 1];
      row[j] = Math.min(previous[j]! + 1, row[j - 1]! + 1, previous[j - 1]! + (same ? 0 : 1));
      if (i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]) {
        row[j] = Math.min(row[j]!, beforePrevious[j - 2]! + 1);
      }
    }
    beforePrevious = previous;
    previous = row;
  }
  return previous[b.length]!;
}
