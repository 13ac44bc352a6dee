import type { InferenceSession, Tensor } from "onnxruntime-node";
import type { ModelWeights } from "../../model/weights.ts";
import { type BatchIndices, batchIndices } from "./batch.ts";
import { buildDecoderGraph } from "./decoder.ts";
import { chunkTokens } from "./forward-plan.ts";
import {
  emptyFloat32,
  type Feeds,
  type Forward,
  indexFeeds,
  int32,
  openSession,
  RopeFeeds,
  readForward,
} from "./session.ts";
import type { EngineSettings } from "./settings.ts";
import type { SupportedModel } from "./support.ts";

/** A loaded model that turns token ids into tapped states. */
export class Extractor {
  readonly #model: SupportedModel;
  readonly #weights: ModelWeights;
  readonly #taps: readonly number[];
  readonly #settings: EngineSettings;
  readonly #rope: RopeFeeds;
  readonly #session: InferenceSession;
  /** Made when the first long sample comes. */
  #chunkSession: InferenceSession | null = null;

  static async open(options: {
    model: SupportedModel;
    weights: ModelWeights;
    taps: readonly number[];
    settings: EngineSettings;
  }): Promise<Extractor> {
    const graph = buildDecoderGraph({ ...options, after: null, cache: false, logits: false, rounded: [] });
    return new Extractor(options, await openSession(graph, options.settings.threads));
  }

  private constructor(
    options: {
      model: SupportedModel;
      weights: ModelWeights;
      taps: readonly number[];
      settings: EngineSettings;
    },
    session: InferenceSession,
  ) {
    this.#model = options.model;
    this.#weights = options.weights;
    this.#taps = options.taps;
    this.#settings = options.settings;
    this.#session = session;
    this.#rope = new RopeFeeds(options.model);
  }

  /** One forward over whole sequences. */
  async forward(batch: BatchIndices): Promise<Forward> {
    const outputs = await this.#session.run({
      ids: int32(batch.ids, [batch.tokens]),
      ...indexFeeds(batch, 0),
      ...this.#rope.feeds(batch.padded),
    });
    return readForward(outputs, batch.tokens);
  }

  /**
   * One long sequence in chunks, each seeing the keys and values of those before it; yields them in order.
   * A chunk shrinks as the sequence grows, so that its attention stays within the memory cap.
   */
  async *prefill(ids: readonly number[]): AsyncGenerator<Forward> {
    const session = await this.#openChunkSession();
    let past = this.#emptyPast();
    for (let start = 0; start < ids.length; ) {
      const tokens = chunkTokens(start, ids.length, { heads: this.#model.decoder.heads, ...this.#settings });
      const batch = batchIndices([ids.slice(start, start + tokens)]);
      const outputs = await session.run({
        ids: int32(batch.ids, [batch.tokens]),
        ...indexFeeds(batch, start),
        ...this.#rope.feeds(start + tokens),
        ...past,
      });
      past = presentAsPast(outputs);
      start += tokens;
      yield readForward(outputs, tokens);
    }
  }

  async #openChunkSession(): Promise<InferenceSession> {
    if (!this.#chunkSession) {
      const parts = { model: this.#model, weights: this.#weights, taps: this.#taps };
      const graph = buildDecoderGraph({ ...parts, after: null, cache: true, logits: false, rounded: [] });
      this.#chunkSession = await openSession(graph, this.#settings.threads);
    }
    return this.#chunkSession;
  }

  #emptyPast(): Feeds {
    const { kvHeads, headDim } = this.#model.decoder;
    const blocks = Array.from({ length: this.#taps.at(-1)! + 1 }, (_, k) => k);
    const names = blocks.flatMap((k) => [`past_key.${k}`, `past_value.${k}`]);
    return Object.fromEntries(names.map((name) => [name, emptyFloat32([1, kvHeads, 0, headDim])]));
  }
}

function presentAsPast(outputs: InferenceSession.ReturnType): Feeds {
  const present = Object.entries(outputs).filter(([name]) => name.startsWith("present_"));
  return Object.fromEntries(
    present.map(([name, value]) => [name.replace("present_", "past_"), value as Tensor]),
  );
}
