import { crc32c } from "../base/checksum.ts";
import type { ExtractSample, SampleStates, TapStats } from "./protocol.ts";

/** What each token of a run's states takes: bf16 [taps, hidden]. */
export interface StatesShape {
  taps: number;
  hidden: number;
}

export interface RefusedRow {
  row: number;
  /** One sentence, with what was expected and what was found. */
  reason: string;
}

/** CRC-32C of token ids as little-endian I32, which is how an engine says what it really ran. */
export function idsCrc32c(ids: readonly number[]): number {
  const bytes = Buffer.allocUnsafe(ids.length * 4);
  ids.forEach((id, i) => {
    bytes.writeInt32LE(id, i * 4);
  });
  return crc32c(bytes);
}

/**
 * Which samples of an answer are refused: states for other ids, of another size, not finite, or without any
 * information. Samples are matched by row, never by position. An answered row that was not asked for, or twice,
 * is the protocol's business (pending-extract.ts); a row that is asked for and not answered is refused here.
 */
export function refusedRows(
  asked: readonly ExtractSample[],
  answered: readonly SampleStates[],
  shape: StatesShape,
): RefusedRow[] {
  const byRow = new Map(answered.map((sample) => [sample.row, sample]));
  return asked.flatMap((sample) => {
    const answer = byRow.get(sample.row);
    const reason = answer ? refusal(sample, answer, shape) : "it was not answered";
    return reason === null ? [] : [{ row: sample.row, reason }];
  });
}

function refusal(asked: ExtractSample, found: SampleStates, { taps, hidden }: StatesShape): string | null {
  const tokens = asked.ids.length;
  const bytes = tokens * taps * hidden * 2;
  if (found.tokens !== tokens) return `expected states of ${tokens} tokens, found ${found.tokens}`;
  if (found.bytes !== bytes) return `expected ${bytes} bytes of states, found ${found.bytes}`;
  if (found.ids_crc32c !== idsCrc32c(asked.ids)) return "the states are those of other token ids";
  if (found.stats.length !== taps) return `expected statistics of ${taps} taps, found ${found.stats.length}`;
  if (!found.finite || found.stats.some(isNotFinite)) return "the states are not finite";
  const zero = found.stats.findIndex(({ absmax }) => absmax === 0);
  if (zero >= 0) return `the states of tap number ${zero} are all zero`;
  if (found.constant || found.stats.some(isOneValue)) return "the states of a tap are all one value";
  return null;
}

/** Non-finite numbers travel as null. */
function isNotFinite({ mean, rms, absmax }: TapStats): boolean {
  return mean === null || rms === null || absmax === null;
}

/** No number is larger than the mean of all: whatever the engine says, there is only one. */
function isOneValue({ mean, absmax }: TapStats): boolean {
  return absmax! <= Math.abs(mean!) * (1 + 1e-6);
}
