import fc from "fast-check";
import { crc32c } from "../../src/base/checksum.ts";
import { type Batch, type PackLayout, type PackShape, packLayout } from "../../src/pack/layout.ts";
import { metadataBytesOf, type PackFacts, type TapNumbers } from "../../src/pack/metadata.ts";
import { type PackContents, packPieces, type SampleOutcome } from "../../src/pack/writer.ts";

/** Packs made up for tests: deterministic contents for a given batch and shape. */

export function tapNumbers(taps: number): TapNumbers {
  const blocks = Array.from({ length: taps }, (_, i) => 2 * i + 1);
  return {
    blocks,
    vllm: blocks.map((k) => k + 1),
    hf: blocks.map((k) => k + 1),
    last_state: false,
    last_state_norm: null,
  };
}

export function packFacts(taps: number, identity = "ab".repeat(32)): PackFacts {
  return { identity, numbering: tapNumbers(taps) };
}

/** bf16 bits that are finite and never all zero. */
function statesOf(row: number, count: number): Uint16Array {
  return Uint16Array.from({ length: count }, (_, i) => 0x3c00 + ((row * 31 + i * 7) % 1000));
}

export interface MadePack {
  contents: PackContents;
  layout: PackLayout;
  shape: PackShape;
  /** Of each done sample, by row. */
  states: Map<number, Uint16Array>;
  bytes: Buffer;
}

/** A whole pack in memory; rows in `skips` are skipped with that reason. */
export function makePack(
  batch: Batch,
  shape: PackShape,
  skips = new Map<number, string>(),
  identity?: string,
): MadePack {
  const layout = packLayout(batch, shape);
  const states = new Map<number, Uint16Array>();
  const outcomes = batch.samples.map(({ row, tokens }): SampleOutcome => {
    const reason = skips.get(row);
    if (reason !== undefined) return { kind: "skipped", reason };
    const values = statesOf(row, tokens * shape.taps * shape.hidden);
    states.set(row, values);
    return {
      kind: "done",
      ids: Int32Array.from({ length: tokens }, (_, i) => (row * 101 + i) % 2 ** 31),
      lossMask: shape.hasLossMask ? Uint8Array.from({ length: tokens }, (_, i) => i & 1) : null,
      statesCrc32c: crc32c(new Uint8Array(values.buffer)),
    };
  });
  const contents = { layout, shape, facts: packFacts(shape.taps, identity), outcomes };
  const bytes = Buffer.alloc(layout.bytes, 0xee);
  for (const { row, statesByte } of layout.samples) {
    const values = states.get(row);
    if (values) bytes.set(new Uint8Array(values.buffer), statesByte);
  }
  for (const piece of packPieces(contents).pieces) {
    if (piece.bytes) piece.bytes.copy(bytes, piece.byte);
    else bytes.fill(0, piece.byte, piece.byte + piece.zeroBytes);
  }
  return { contents, layout, shape, states, bytes };
}

export const anyShape: fc.Arbitrary<PackShape> = fc
  .record({ taps: fc.integer({ min: 1, max: 4 }), quads: fc.integer({ min: 1, max: 4 }), mask: fc.boolean() })
  .map(({ taps, quads, mask }) => ({
    taps,
    hidden: 4 * quads,
    hasLossMask: mask,
    metadataBytes: metadataBytesOf(tapNumbers(taps)),
  }));

export const anyBatch: fc.Arbitrary<Batch> = fc
  .record({
    index: fc.integer({ min: 0, max: 2 ** 32 - 1 }),
    rows: fc.uniqueArray(fc.integer({ min: 0, max: 2 ** 32 - 1 }), { minLength: 1, maxLength: 12 }),
    tokens: fc.array(fc.integer({ min: 1, max: 120 }), { minLength: 12, maxLength: 12 }),
  })
  .map(({ index, rows, tokens }) => ({
    index,
    samples: rows.map((row, i) => ({ row, tokens: tokens[i]! })),
  }));
