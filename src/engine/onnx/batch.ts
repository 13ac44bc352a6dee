/** The index tensors of one forward over sequences of different lengths. */
export interface BatchIndices {
  tokens: number;
  sequences: number;
  /** The longest, to which the others are padded inside the attention. */
  padded: number;
  /** [tokens], the sequences one after another. */
  ids: Int32Array;
  /** [sequences, padded]: which packed row stands in each slot. */
  gather: Int32Array;
  /** [tokens]: which slot each packed row is in. */
  scatter: Int32Array;
}

/**
 * Packs `sequences` one after another. A slot behind a sequence's end holds `padRow`, any row at all: what stands
 * behind a token is never seen by it, and what comes of a pad is dropped.
 */
export function batchIndices(sequences: readonly (readonly number[])[], padRow = 0): BatchIndices {
  const padded = Math.max(...sequences.map((ids) => ids.length));
  const tokens = sequences.reduce((sum, ids) => sum + ids.length, 0);
  const gather = new Int32Array(sequences.length * padded).fill(padRow);
  const scatter = new Int32Array(tokens);
  const packed = new Int32Array(tokens);
  let row = 0;
  sequences.forEach((ids, b) => {
    for (let s = 0; s < ids.length; s += 1, row += 1) {
      packed[row] = ids[s]!;
      gather[b * padded + s] = row;
      scatter[row] = b * padded + s;
    }
  });
  return { tokens, sequences: sequences.length, padded, ids: packed, gather, scatter };
}
