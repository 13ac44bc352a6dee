/** One sample as a batch names it. */
export interface BatchSample {
  /** The dataset row index: the sample's id everywhere. */
  row: number;
  /** Tokens after the plan's truncation, >= 1. */
  tokens: number;
}

/** The unit of work and of commit: a fixed list of samples, in plan order. */
export interface Batch {
  index: number;
  samples: BatchSample[];
}

/** What every pack of a run has in common. */
export interface PackShape {
  /** Number of tapped blocks. */
  taps: number;
  /** Hidden size. taps x hidden is a multiple of 4. */
  hidden: number;
  hasLossMask: boolean;
  /** Numbering table and identity have one length for the whole run; bytes reserved for them in each header. */
  metadataBytes: number;
}

/** Where one sample lies in its object; all offsets count from the object's first byte. */
export interface SampleLayout {
  row: number;
  tokens: number;
  /** [startByte, endByte) is the whole sample: ids, mask, states. */
  startByte: number;
  endByte: number;
  /** I64 [tokens] */
  idsByte: number;
  /** I64 [tokens], or null without a mask */
  maskByte: number | null;
  /** BF16 [tokens, taps, hidden], row-major, little-endian */
  statesByte: number;
  statesBytes: number;
}

export interface PackLayout {
  batch: number;
  /** Header with its 8 length bytes; a multiple of 64, fixed by the plan. */
  headerBytes: number;
  /** The object's exact size. */
  bytes: number;
  samples: SampleLayout[];
}
