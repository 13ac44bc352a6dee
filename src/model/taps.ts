import { EXIT, RunError } from "../base/errors.ts";

/**
 * Whose numbers they are (N blocks, k = 0..N-1, out(k) the residual stream after block k, before any norm):
 * `forebay` (also z-lab/dflash and SpecForge `target_layer_ids`): i = out(i).
 * `hf` (Hugging Face `output_hidden_states`): 0 = embeddings, i = out(i-1); index N is AFTER the final norm.
 * `vllm` (vLLM and speculators): 0 = embeddings, i = out(i-1); id N is BEFORE the final norm.
 */
const NUMBERINGS = ["forebay", "hf", "vllm"] as const;
export type Numbering = (typeof NUMBERINGS)[number];

/** The taps of a run in every numbering, as packs and run.json record them. */
export interface TapsMetadata {
  /** Forebay's block ids, ascending. */
  blocks: number[];
  vllm: number[];
  /** `output_hidden_states` indices; null for the last block, whose pre-norm state HF does not show. */
  hf: (number | null)[];
  /** Whether out(N-1) is among them, and in which state: ours is always before the final norm. */
  lastState: boolean;
  lastStateNorm: "pre-norm" | null;
}

/** Block ids from a text such as "1,16,31,46,61". Throws a usage error where it is not what parseTapList takes. */
export function parseTaps(text: string, options: { blocks: number; as?: Numbering }): number[] {
  const parts = text.split(",").map((part) => part.trim());
  const ids = parts.map((part) => (/^-?\d+$/.test(part) ? Number(part) : Number.NaN));
  const broken = ids.findIndex((id) => !Number.isSafeInteger(id));
  if (broken !== -1) {
    throw usage(text, `expected whole numbers with commas between, found "${parts[broken]}"`, options.blocks);
  }
  return toBlocks(ids, { ...options, as: options.as ?? "forebay" });
}

/**
 * `ids` of another numbering as Forebay's block ids, ascending.
 * Throws a usage error for ids that are unsorted, doubled, negative or beyond the model, and for an id that
 * names something that is no block's output (the embeddings; HF's last entry, which is after the final norm).
 */
export function toBlocks(ids: readonly number[], options: { blocks: number; as: Numbering }): number[] {
  const { blocks, as } = options;
  const subject = ids.join(",");
  if (ids.length === 0) throw usage(subject, "expected at least one tap, found none", blocks);
  const shift = as === "forebay" ? 0 : 1;
  ids.forEach((id, j) => {
    const previous = ids[j - 1];
    if (id < 0) throw usage(subject, `tap ${id} is negative`, blocks);
    if (shift === 1 && id === 0)
      throw usage(subject, `id 0 in ${as} numbering is the embeddings, no block`, blocks);
    if (as === "hf" && id === blocks) {
      throw usage(subject, `index ${id} of Hugging Face's hidden states is after the final norm`, blocks);
    }
    if (id - shift >= blocks) {
      throw usage(subject, `tap ${id} is out of range: the model has ${blocks} blocks`, blocks);
    }
    if (previous !== undefined && id === previous) throw usage(subject, `tap ${id} stands twice`, blocks);
    if (previous !== undefined && id < previous) {
      throw usage(subject, `taps must ascend, found ${id} after ${previous}`, blocks);
    }
  });
  return ids.map((id) => id - shift);
}

/** What packs and run.json say about `taps` (Forebay's, ascending) of a model of `blocks` blocks. */
export function tapsMetadata(taps: readonly number[], blocks: number): TapsMetadata {
  const lastState = taps.at(-1) === blocks - 1;
  return {
    blocks: [...taps],
    vllm: taps.map((k) => k + 1),
    hf: taps.map((k) => (k === blocks - 1 ? null : k + 1)),
    lastState,
    lastStateNorm: lastState ? "pre-norm" : null,
  };
}

/**
 * The taps that DFlash takes for `draftLayers` draft layers: [N//2] for one, else round(1 + j(N-4)/(L-1)),
 * rounding half to even as Python does. Source: z-lab/dflash, `build_target_layer_ids`.
 * Throws a usage error where the model has too few blocks for that many different taps.
 */
export function dflashTaps(blocks: number, draftLayers: number): number[] {
  const ids =
    draftLayers === 1
      ? [Math.floor(blocks / 2)]
      : Array.from({ length: draftLayers }, (_, j) =>
          roundHalfToEven(1 + (j * (blocks - 4)) / (draftLayers - 1)),
        );
  return toBlocks(ids, { blocks, as: "forebay" });
}

/** The taps that EAGLE-3 takes: [2, N//2, N-3] in vLLM's numbering. Throws where they would not ascend. */
export function eagle3Taps(blocks: number): number[] {
  return toBlocks([2, Math.floor(blocks / 2), blocks - 3], { blocks, as: "vllm" });
}

function roundHalfToEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  if (rest !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

function usage(subject: string, message: string, blocks: number): RunError {
  return new RunError({
    op: "read taps",
    subject: `--taps ${subject}`,
    message,
    hint: `taps are block ids from 0 to ${blocks - 1}, ascending, such as --taps ${example(blocks)}; \`forebay taps\` lists them in every numbering`,
    exit: EXIT.usage,
  });
}

function example(blocks: number): string {
  return [...new Set([Math.min(1, blocks - 1), Math.floor(blocks / 2), blocks - 1])].join(",");
}
