import { closeSync, openSync } from "node:fs";
import type { InferenceSession } from "onnxruntime-node";
import { readExactlySync } from "../../base/read-exactly.ts";
import type { ModelWeights } from "../../model/weights.ts";
import type { ExtractSample } from "../protocol.ts";
import type { BatchIndices } from "./batch.ts";
import { buildDecoderGraph } from "./decoder.ts";
import { float32, indexFeeds, int32, openSession, RopeFeeds, uint16 } from "./session.ts";
import type { EngineSettings } from "./settings.ts";
import type { SupportedModel } from "./support.ts";

/** The samples of one forward of the check. */
export interface Group {
  samples: ExtractSample[];
  batch: BatchIndices;
  /** The tokens whose logits are compared. */
  logitRows: Int32Array;
  /** Where in `logitRows` each sample's last token is. */
  lastRows: number[];
}

/** [rows, vocab], row-major. */
export type Logits = Float32Array;

/** What is known of one tap; each list has an entry a group. */
export interface TapPasses {
  /** [tokens, hidden], bf16 bits, as they are in the file. */
  stored: Uint16Array[];
  /** The model's logits where it rounds this block's output to bf16 on the way. */
  rounded: Logits[];
  /** The model's logits from the stored states on. */
  injected: Logits[];
}

export interface PassesOptions {
  model: SupportedModel;
  weights: ModelWeights;
  taps: readonly number[];
  settings: EngineSettings;
  /** Holds the states of all samples, as extracted. */
  file: string;
  groups: Group[];
  /** After each pass through the model. */
  tick: () => void;
}

/**
 * The passes through the model that one check compares. Each has a graph of its own, whose making is most of its
 * cost, so a pass is made once for all checks: the model's own, and those of the tap that was last asked for (logits of
 * a large vocabulary are tens of megabytes a pass).
 */
export class GatePasses {
  readonly #options: PassesOptions;
  readonly #rope: RopeFeeds;
  #own: Promise<Logits[]> | null = null;
  #last: { tap: number; passes: Promise<TapPasses> } | null = null;

  constructor(options: PassesOptions) {
    this.#options = options;
    this.#rope = new RopeFeeds(options.model);
  }

  /** Token ids in, nothing touched. */
  own(): Promise<Logits[]> {
    this.#own ??= this.#logits({ after: null, rounded: [] }, null);
    return this.#own;
  }

  at(tap: number): Promise<TapPasses> {
    if (this.#last?.tap !== tap) this.#last = { tap, passes: this.#passesOf(tap) };
    return this.#last.passes;
  }

  /** The logits with `states` put in as the output of `block`. */
  injected(block: number, states: Uint16Array[]): Promise<Logits[]> {
    return this.#logits({ after: block, rounded: [] }, states);
  }

  async #passesOf(tap: number): Promise<TapPasses> {
    const stored = this.#options.groups.map((group) => this.#readTap(group, tap));
    const rounded = await this.#logits({ after: null, rounded: [tap] }, null);
    return { stored, rounded, injected: await this.injected(tap, stored) };
  }

  async #logits(
    graph: { after: number | null; rounded: number[] },
    states: Uint16Array[] | null,
  ): Promise<Logits[]> {
    const { model, weights, settings, groups, tick } = this.#options;
    const built = buildDecoderGraph({ model, weights, ...graph, taps: [], cache: false, logits: true });
    const session = await openSession(built, settings.threads);
    try {
      const all: Logits[] = [];
      for (const [g, group] of groups.entries()) {
        const from = { hasBlocks: built.startBlock < built.endBlock, states: states?.[g] };
        all.push(await this.#run(session, group, from));
      }
      tick();
      return all;
    } finally {
      await session.release();
    }
  }

  async #run(
    session: InferenceSession,
    { batch, logitRows }: Group,
    from: { hasBlocks: boolean; states: Uint16Array | undefined },
  ): Promise<Logits> {
    const { hidden } = this.#options.model;
    const outputs = await session.run({
      ...(from.states
        ? { states: uint16(from.states, [batch.tokens, hidden]) }
        : { ids: int32(batch.ids, [batch.tokens]) }),
      ...(from.hasBlocks ? { ...indexFeeds(batch, 0), ...this.#rope.feeds(batch.padded) } : {}),
      logit_rows: int32(logitRows, [logitRows.length]),
    });
    return float32(outputs, "logits");
  }

  /** [tokens, hidden] of one tap, from the stored [tokens, taps, hidden] of each sample. */
  #readTap(group: Group, tap: number): Uint16Array {
    const { taps, model, file } = this.#options;
    const slot = taps.indexOf(tap);
    const states = new Uint16Array(group.batch.tokens * model.hidden);
    const rowValues = taps.length * model.hidden;
    const cut = () => Object.assign(new Error(`${file} ends within the stored states`), { code: "EIO" });
    const fd = openSync(file, "r");
    try {
      let row = 0;
      for (const sample of group.samples) {
        const stored = new Uint16Array(sample.ids.length * rowValues);
        readExactlySync(fd, new Uint8Array(stored.buffer), { startByte: sample.offset, path: file, cut });
        for (let t = 0; t < sample.ids.length; t += 1, row += 1) {
          const startValue = t * rowValues + slot * model.hidden;
          states.set(stored.subarray(startValue, startValue + model.hidden), row * model.hidden);
        }
      }
    } finally {
      closeSync(fd);
    }
    return states;
  }
}
