import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { makePack, tapNumbers } from "../../test/support/packs.ts";
import { crcToHex } from "../base/checksum.ts";
import type { Batch, PackShape } from "./layout.ts";
import { metadataBytesOf } from "./metadata.ts";
import { decodeSample, readPackHeader } from "./reader.ts";
import { packPieces } from "./writer.ts";

/**
 * Packs that stay the same for ever, with what is in them as JSON: the Python reader's tests read the same files.
 * FOREBAY_WRITE_GOLDEN=1 writes them anew, which is a change of the format and needs a new number in its name.
 */
const cases: { name: string; batch: Batch; shape: PackShape; skips: Map<number, string> }[] = [
  {
    name: "with-mask",
    batch: batch(3, [12, 100_007, 0]),
    shape: shapeOf(3, 8, true),
    skips: new Map(),
  },
  {
    name: "no-mask",
    batch: batch(70_000, [5, 6]),
    shape: shapeOf(1, 4, false),
    skips: new Map(),
  },
  {
    name: "with-skip",
    batch: batch(4, [41, 42, 43]),
    shape: shapeOf(2, 6, true),
    skips: new Map([[42, "nonfinite: tap 3, twice; in two engines"]]),
  },
];

test.each(cases)("the golden pack $name is what this version writes, byte for byte", (golden) => {
  const made = makePack(golden.batch, golden.shape, golden.skips);
  if (process.env.FOREBAY_WRITE_GOLDEN) {
    writeFileSync(path(`${golden.name}.safetensors`), made.bytes);
    writeFileSync(path(`${golden.name}.json`), `${JSON.stringify(describe(made.bytes, golden), null, 1)}\n`);
  }
  expect(readFileSync(path(`${golden.name}.safetensors`)).equals(made.bytes)).toBe(true);
});

test.each(cases)("the golden pack $name reads as its JSON says", (golden) => {
  const bytes = readFileSync(path(`${golden.name}.safetensors`));
  const expected = JSON.parse(readFileSync(path(`${golden.name}.json`), "utf8"));
  expect(describe(bytes, golden)).toEqual(expected);
});

/** What a reader must find; states as the 16 bits of each bf16, row-major. */
function describe(bytes: Buffer, { name, batch, shape, skips }: (typeof cases)[number]) {
  const header = readPackHeader(bytes, name, bytes.length);
  const { layout, contents } = makePack(batch, shape, skips);
  return {
    bytes: bytes.length,
    crc32c: crcToHex(packPieces(contents).crc32c),
    header_bytes: header.headerBytes,
    batch: header.batch,
    identity: header.identity,
    metadata: header.metadata,
    taps: shape.taps,
    hidden: shape.hidden,
    samples: header.samples.map((sample, i) => {
      const range = bytes.subarray(sample.startByte, sample.endByte);
      const decoded = decodeSample(range, layout.samples[i]!, name);
      const place = {
        row: sample.row,
        start_byte: sample.startByte,
        end_byte: sample.endByte,
        crc32c: crcToHex(sample.crc32c),
        skipped: sample.skipped,
      };
      if (decoded.kind === "skipped") return place;
      return {
        ...place,
        tokens: sample.tokens,
        token_ids: [...decoded.ids],
        loss_mask: decoded.lossMask && [...decoded.lossMask],
        hidden_states_bits: [...decoded.states],
      };
    }),
  };
}

function batch(index: number, rows: number[]): Batch {
  return { index, samples: rows.map((row, i) => ({ row, tokens: 2 + i })) };
}

function shapeOf(taps: number, hidden: number, hasLossMask: boolean): PackShape {
  return { taps, hidden, hasLossMask, metadataBytes: metadataBytesOf(tapNumbers(taps)) };
}

function path(file: string): string {
  return fileURLToPath(new URL(`../../fixtures/packs/${file}`, import.meta.url));
}
