import type { Eta, EtaInput, EtaLog, Work } from "../../src/run/eta.ts";

export interface SimulatedRun {
  seed: number;
  samples?: number;
  medianTokens?: number;
  lengthSpread?: number;
  tokensMax?: number;
  batchTokens?: number;
  bytesAToken?: number;
  order?: "shuffled" | "longest-first";
  engines?: number;
  slots?: number;
  tokensPerS?: number;
  attentionShare?: number;
  noise?: number;
  wander?: number;
  /** What each sample costs beside its tokens, in tokens. */
  sampleTokens?: number;
  uplinkBytesPerS?: number;
  spoolBytes?: number;
  engineLostAt?: number | null;
}

export type RecordedEvent =
  | ({ kind: "computed"; atS: number; bytes: number; blockedS: number } & Work)
  | { kind: "verified"; atS: number; bytes: number; starvedS: number };

export interface Recording {
  startS: number;
  slots: number;
  attentionShare: number;
  totals: Work & { bytes: number };
  events: RecordedEvent[];
}

export interface Look {
  done: number;
  trueS: number;
  elapsedS: number;
  eta: Eta;
}

export interface Estimator {
  EtaLog: typeof EtaLog;
  estimateEta(input: EtaInput): Eta;
}

export function randomFrom(seed: number): () => number;
export function simulateRun(options: SimulatedRun): Recording;
export function replay(recording: Recording, estimator: Estimator): Look[];
