/** The largest |b - a| / |a| (L2 over the vocabulary) of any row of two [rows, vocab]; NaN where any is not finite. */
export function largestDifference(a: Float32Array, b: Float32Array, vocab: number): number {
  let largest = 0;
  for (let start = 0; start < a.length; start += vocab) {
    let difference = 0;
    let norm = 0;
    for (let at = start; at < start + vocab; at += 1) {
      difference += (b[at]! - a[at]!) ** 2;
      norm += a[at]! ** 2;
    }
    const relative = Math.sqrt(difference / norm);
    largest = Math.max(largest, relative);
  }
  return largest;
}

export function maxAbsDifference(a: Float32Array, b: Float32Array): number {
  let largest = 0;
  for (let at = 0; at < a.length; at += 1) largest = Math.max(largest, Math.abs(a[at]! - b[at]!));
  return largest;
}

/** The index of the largest; the first of equals. */
export function argmax(values: Float32Array): number {
  let best = 0;
  for (let at = 1; at < values.length; at += 1) if (values[at]! > values[best]!) best = at;
  return best;
}
