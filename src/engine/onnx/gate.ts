import type { ModelWeights } from "../../model/weights.ts";
import type { CheckKind, CheckRequest, CheckResult, ExtractSample } from "../protocol.ts";
import { batchIndices } from "./batch.ts";
import type { Extractor } from "./extractor.ts";
import { attentionBytes } from "./forward-plan.ts";
import { GatePasses, type Group, type Logits } from "./gate-passes.ts";
import { argmax, largestDifference, maxAbsDifference } from "./logits.ts";
import type { EngineSettings } from "./settings.ts";
import type { SupportedModel } from "./support.ts";

export interface GateParts {
  model: SupportedModel;
  weights: ModelWeights;
  taps: readonly number[];
  settings: EngineSettings;
  extractor: Extractor;
}

/** How far the logits may be off: the effect of rounding the same states to bf16 inside the model, times this. */
const ROUNDING_FACTOR = 4;
/** What f32 itself is off between two graphs that compute the same. */
const FLOAT_NOISE = 1e-5;
/** States put back one block off must show at least this many times the limit. */
const CONTROL_FACTOR = 10;
/** Logits are compared at so many tokens of each sample, the last among them. */
const LOGIT_ROWS_MAX = 16;

/** The gate's checks (engine-protocol.md "The gate"): does what is stored do, inside the model, what the model does? */
export class Gate {
  readonly #parts: GateParts;

  constructor(parts: GateParts) {
    this.#parts = parts;
  }

  /** Runs `request.kinds` one after another; `onProgress` after each pass through the model. */
  async check(
    request: CheckRequest,
    onProgress: (done: number, total: number) => void,
  ): Promise<CheckResult[]> {
    const groups = this.#groups(request.samples);
    // The most there can be: the model's own, three a tap, two with other pads.
    const total = 3 + 3 * this.#parts.taps.length;
    let done = 0;
    const tick = () => {
      done += 1;
      onProgress(done, total);
    };
    const passes = new GatePasses({ ...this.#parts, file: request.file, groups, tick });
    const results: CheckResult[] = [];
    for (const kind of request.kinds) results.push(await this.#checkOne(kind, groups, passes, tick));
    return results;
  }

  async #checkOne(
    kind: CheckKind,
    groups: Group[],
    passes: GatePasses,
    tick: () => void,
  ): Promise<CheckResult> {
    switch (kind) {
      case "injection":
        return this.#injection(passes);
      case "pad-independence":
        return this.#padIndependence(groups, tick);
      case "greedy":
        return this.#greedy(groups, passes);
    }
  }

  /**
   * For each tap: its stored bytes put back as that block's output must give the model's own logits, as nearly as
   * bf16 allows, and put back one block off must not. The first tap that fails is reported, else the worst.
   */
  async #injection(passes: GatePasses): Promise<CheckResult> {
    const { taps, model } = this.#parts;
    const own = await passes.own();
    let worst: CheckResult | null = null;
    for (const tap of taps) {
      const { stored, rounded, injected } = await passes.at(tap);
      const other = offByOne(tap, model.blocks);
      const control = other === null ? null : await passes.injected(other, stored);
      const limit = ROUNDING_FACTOR * this.#distance(own, rounded) + FLOAT_NOISE;
      const result = injectionResult({
        tap,
        limit,
        measured: this.#distance(own, injected),
        control: control && this.#distance(own, control),
      });
      if (!result.ok) return result;
      if (!worst || share(result) > share(worst)) worst = result;
    }
    return worst!;
  }

  /** The same batch, its pads filled from two different rows, must give the same bytes. */
  async #padIndependence(groups: Group[], tick: () => void): Promise<CheckResult> {
    const sequences = withPads(groups[0]!.samples.map((sample) => sample.ids));
    const tokens = sequences.reduce((sum, ids) => sum + ids.length, 0);
    const first = await this.#parts.extractor.forward(batchIndices(sequences, 0));
    tick();
    const second = await this.#parts.extractor.forward(batchIndices(sequences, tokens - 1));
    tick();
    const differing = first.states.reduce((sum, bits, at) => sum + (bits === second.states[at] ? 0 : 1), 0);
    return {
      kind: "pad-independence",
      ok: differing === 0,
      tap: null,
      measured: differing / first.states.length,
      limit: 0,
      control: null,
      message:
        differing === 0
          ? `${tokens} tokens in ${sequences.length} sequences are bitwise the same with other pads`
          : `${differing} of ${first.states.length} numbers change with what stands in the pads`,
    };
  }

  /** From the last tap's stored states on, the last token of each sample must choose the token the model chooses. */
  async #greedy(groups: Group[], passes: GatePasses): Promise<CheckResult> {
    const { model, taps } = this.#parts;
    const tap = taps.at(-1)!;
    const own = await passes.own();
    const { rounded, injected } = await passes.at(tap);
    let samples = 0;
    let equal = 0;
    let worst = { over: Number.NEGATIVE_INFINITY, margin: 0, limit: 0, row: 0 };
    groups.forEach((group, g) => {
      group.lastRows.forEach((row, s) => {
        const at = (logits: Logits[]) => logits[g]!.subarray(row * model.vocab, (row + 1) * model.vocab);
        const [mine, theirs] = [at(own), at(injected)];
        const chosen = argmax(mine);
        const margin = mine[chosen]! - mine[argmax(theirs)]!;
        // Two logits may each move by as much.
        const limit = 2 * ROUNDING_FACTOR * maxAbsDifference(mine, at(rounded));
        samples += 1;
        if (margin === 0) equal += 1;
        // A NaN margin is over any limit.
        const over = Number.isNaN(margin) ? Number.POSITIVE_INFINITY : margin - limit;
        if (over > worst.over) worst = { over, margin, limit, row: group.samples[s]!.row };
      });
    });
    const ok = worst.over <= 0;
    return {
      kind: "greedy",
      ok,
      tap: ok ? null : tap,
      measured: worst.margin,
      limit: worst.limit,
      control: null,
      message: ok
        ? `${equal} of ${samples} samples choose the model's own token, the others tie within rounding`
        : `row ${worst.row}: the stored states of block ${tap} choose a token ${worst.margin} below the model's own`,
    };
  }

  #distance(own: Logits[], other: Logits[]): number {
    return Math.max(...own.map((logits, g) => largestDifference(logits, other[g]!, this.#parts.model.vocab)));
  }

  /** Samples in order, as many in each group as a forward takes. */
  #groups(samples: readonly ExtractSample[]): Group[] {
    const { settings, model } = this.#parts;
    const groups: ExtractSample[][] = [[]];
    for (const sample of samples) {
      const group = [...groups.at(-1)!, sample];
      const tokens = group.reduce((sum, { ids }) => sum + ids.length, 0);
      const longest = Math.max(...group.map(({ ids }) => ids.length));
      const bytes = attentionBytes(group.length, longest, longest, model.decoder.heads);
      const fits = tokens <= settings.forwardTokens && bytes <= settings.attentionBytes;
      if (fits || group.length === 1) groups[groups.length - 1] = group;
      else groups.push([sample]);
    }
    return groups.map(makeGroup);
  }
}

function makeGroup(samples: ExtractSample[]): Group {
  const batch = batchIndices(samples.map((sample) => sample.ids));
  const rows: number[] = [];
  const lastRows: number[] = [];
  let start = 0;
  for (const { ids } of samples) {
    const picked = Math.min(ids.length, LOGIT_ROWS_MAX);
    // Evenly from the first to the last token.
    for (let j = 1; j <= picked; j += 1) rows.push(start + Math.ceil((j * ids.length) / picked) - 1);
    lastRows.push(rows.length - 1);
    start += ids.length;
  }
  return { samples, batch, logitRows: Int32Array.from(rows), lastRows };
}

/** The block after `tap`, or the one before where it is the last; null in a model of one block. */
function offByOne(tap: number, blocks: number): number | null {
  if (tap + 1 < blocks) return tap + 1;
  return tap > 0 ? tap - 1 : null;
}

/** The verdict over one tap. */
export function injectionResult(found: {
  tap: number;
  measured: number;
  limit: number;
  control: number | null;
}): CheckResult {
  const { tap, measured, limit, control } = found;
  // Infinite where logits are not finite, which proves nothing.
  const isSame = measured <= limit && Number.isFinite(limit);
  const isSharp = control === null || control >= CONTROL_FACTOR * limit;
  const figures = `off by ${measured.toExponential(1)}, limit ${limit.toExponential(1)}, one block off ${control?.toExponential(1) ?? "unknown"}`;
  const verdict = !isSame
    ? "the stored states of block TAP do not give the model's logits"
    : isSharp
      ? "the stored states of block TAP give the model's logits"
      : "block TAP cannot be told from its neighbour by its effect on the logits";
  return {
    kind: "injection",
    ok: isSame && isSharp,
    tap: isSame && isSharp ? null : tap,
    measured: finiteOrNull(measured),
    limit: finiteOrNull(limit),
    control: control === null ? null : finiteOrNull(control),
    message: `${verdict.replace("TAP", String(tap))}: ${figures}`,
  };
}

function share(result: CheckResult): number {
  return (result.measured ?? Number.POSITIVE_INFINITY) / (result.limit ?? 1);
}

function finiteOrNull(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}

/** Sequences that need pads in one batch: where all are of one length, a shorter copy of the first joins them. */
function withPads(sequences: number[][]): number[][] {
  const first = sequences[0]!;
  if (sequences.some((ids) => ids.length !== first.length)) return sequences;
  return [...sequences, first.slice(0, Math.max(1, Math.floor(first.length / 2)))];
}
