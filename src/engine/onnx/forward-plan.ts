/** A sample waiting for its forward. */
export interface WaitingSample {
  tokens: number;
  /** Its request's place in the queue, 0 the oldest. */
  request: number;
}

export interface ForwardLimits {
  forwardTokens: number;
  prefillChunkTokens: number;
  attentionBytes: number;
  heads: number;
}

/** Slots of the attention for each token; the rest is pads, computed and thrown away. */
const PADDED_RATIO_MAX = 1.5;

/** Whether a sample of `tokens` must go alone and in chunks. */
export function needsChunks(tokens: number, limits: ForwardLimits): boolean {
  const whole = attentionBytes(1, tokens, tokens, limits.heads);
  return tokens > limits.prefillChunkTokens || whole > limits.attentionBytes;
}

/**
 * Which of `waiting` (not empty) make the next forward. The longest of the oldest request is always in it, so that
 * the oldest request gets on with every forward; around it, from all requests, those nearest to its length.
 * A sample that needs chunks comes alone.
 */
export function formForward<Sample extends WaitingSample>(
  waiting: readonly Sample[],
  limits: ForwardLimits,
): Sample[] {
  const oldest = Math.min(...waiting.map((sample) => sample.request));
  const anchor = waiting
    .filter((sample) => sample.request === oldest)
    .reduce((longest, sample) => (sample.tokens > longest.tokens ? sample : longest));
  if (needsChunks(anchor.tokens, limits)) return [anchor];
  const distance = (sample: Sample) => Math.abs(sample.tokens - anchor.tokens);
  const candidates = waiting
    .filter((sample) => sample !== anchor && !needsChunks(sample.tokens, limits))
    .sort((a, b) => distance(a) - distance(b) || a.request - b.request);
  const chosen = [anchor];
  let tokens = anchor.tokens;
  let padded = anchor.tokens;
  for (const sample of candidates) {
    const longest = Math.max(padded, sample.tokens);
    const count = chosen.length + 1;
    const sum = tokens + sample.tokens;
    if (sum > limits.forwardTokens) continue;
    if (count * longest > PADDED_RATIO_MAX * sum) continue;
    if (attentionBytes(count, longest, longest, limits.heads) > limits.attentionBytes) continue;
    chosen.push(sample);
    tokens = sum;
    padded = longest;
  }
  return chosen;
}

/** How many tokens the chunk of [start, end) may have, for its attention over all so far to fit. */
export function chunkTokens(
  start: number,
  end: number,
  limits: Pick<ForwardLimits, "prefillChunkTokens" | "attentionBytes" | "heads">,
): number {
  let tokens = Math.min(end - start, limits.prefillChunkTokens);
  const fits = () => attentionBytes(1, tokens, start + tokens, limits.heads) <= limits.attentionBytes;
  while (tokens > 1 && !fits()) tokens = Math.ceil(tokens / 2);
  return tokens;
}

/** What GroupQueryAttention materialises: sequences x heads x queries x keys floats. */
export function attentionBytes(sequences: number, queries: number, keys: number, heads: number): number {
  return sequences * heads * queries * keys * 4;
}

/** Keys and values of `tokens` in f32, those that came in and those that go out. */
export function cacheBytes(
  tokens: number,
  shape: { blocks: number; kvHeads: number; headDim: number },
): number {
  return 2 * (2 * shape.blocks * shape.kvHeads * shape.headDim * tokens * 4);
}
