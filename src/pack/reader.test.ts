import { expect, test } from "vitest";
import { makePack, tapNumbers } from "../../test/support/packs.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { buildHeader } from "../base/safetensors.ts";
import { packLayout } from "./layout.ts";
import { metadataBytesOf } from "./metadata.ts";
import { checkPackHeader, checkSampleCrc, decodeSample, readPackHeader } from "./reader.ts";
import { HEADER_CRC_BYTE, headerCrc32c } from "./writer.ts";

const shape = { taps: 2, hidden: 8, hasLossMask: true, metadataBytes: metadataBytesOf(tapNumbers(2)) };
const batch = { index: 12, samples: [40, 7, 8].map((row, i) => ({ row, tokens: 3 + i })) };
const pack = makePack(batch, shape, new Map([[7, "oom"]]));

/** The pack with `from` replaced by `to` in its header, padded to the same length, its own CRC made right again. */
function forged(from: string | RegExp, to: string): Buffer {
  const { headerBytes } = pack.layout;
  const text = pack.bytes.subarray(8, headerBytes).toString("latin1");
  expect(text).toMatch(from);
  const changed = text
    .replace(from, to)
    .trimEnd()
    .padEnd(headerBytes - 8);
  const bytes = Buffer.from(pack.bytes);
  bytes.write(changed, 8, "latin1");
  const crc = headerCrc32c(bytes.subarray(0, headerBytes));
  bytes.write(crc.toString(16).padStart(8, "0"), HEADER_CRC_BYTE, "latin1");
  return bytes;
}

function refusal(act: () => unknown): RunError {
  try {
    act();
  } catch (error) {
    if (error instanceof RunError) return error;
    throw error;
  }
  throw new Error("expected a refusal");
}

test("one changed bit in any byte of a header is noticed", () => {
  const { headerBytes } = pack.layout;
  for (let byte = 0; byte < headerBytes; byte += 1) {
    const bytes = Buffer.from(pack.bytes.subarray(0, headerBytes));
    bytes[byte]! ^= 1 << (byte & 7);
    expect(refusal(() => readPackHeader(bytes, "pack", pack.layout.bytes)).exit).toBe(EXIT.integrity);
  }
});

test.each([
  ["another format", "forebay-pack-1", "forebay-pack-9", "expected the format forebay-pack-1"],
  ["no identity", /"identity":"\w+"/, '"identity":"abc"', "no run identity"],
  ["a batch that is no number", '"batch":"12"', '"batch":"-1"', "names the batch"],
  ["a foreign tensor", "40.token_ids", "40.token_idz", "no tensor named"],
  ["a row with a leading zero", "8.token_ids", "08.token_ids", "no tensor named"],
  ["a sample in two rows' names", "8.hidden_states", "9.hidden_states", "row 8 is not its token ids"],
  ["a row that stands twice", /"8\./g, '"40.', "stands twice"],
  ["states of another dtype", "BF16", "F16", "expected BF16"],
  ["a CRC that is no hex", /8:[0-9a-f]{8}"/, '8:0123456Z"', "row 8 has no CRC-32C"],
  ["a missing CRC", /;8:[0-9a-f]{8}"/, '"', "row 8 has no CRC-32C"],
  ["a CRC for a row that is not there", /"crc32c":"/, '"crc32c":"77:00000000;', "4 CRCs stand beside 3"],
])("a header with %s is refused", (_, from, to, message) => {
  const error = refusal(() => readPackHeader(forged(from, to), "packs/x", pack.layout.bytes));
  expect(error.message).toContain(message);
  expect(error.exit).toBe(EXIT.integrity);
  expect(error.subject).toBe("packs/x");
});

test("a cut pack is refused by its size alone", () => {
  const error = refusal(() => readPackHeader(pack.bytes, "pack", pack.layout.bytes - 8));
  expect(error.message).toContain(`the file has ${pack.layout.bytes - 8}`);
});

test("some other safetensors file is not taken for a pack", () => {
  const bytes = buildHeader([{ name: "weight", dtype: "F32", shape: [0] }], { format: "pt" });
  expect(refusal(() => readPackHeader(bytes, "pack")).message).toContain("found pt");
});

test("what stands under a batch's key is told apart: ours, another run's, an alien", () => {
  const header = readPackHeader(pack.bytes, "pack", pack.layout.bytes);
  expect(checkPackHeader(header, pack.layout, "ab".repeat(32))).toEqual({ kind: "same" });
  expect(checkPackHeader(header, pack.layout, "cd".repeat(32))).toEqual({
    kind: "other-identity",
    found: "ab".repeat(32),
  });
  const moved = packLayout({ ...batch, index: 13 }, shape);
  expect(checkPackHeader(header, moved, "ab".repeat(32))).toMatchObject({ kind: "alien" });
  const swapped = packLayout({ index: 12, samples: [...batch.samples].reverse() }, shape);
  expect(checkPackHeader(header, swapped, "ab".repeat(32))).toMatchObject({ kind: "alien" });
  const shorter = packLayout({ index: 12, samples: batch.samples.slice(1) }, shape);
  expect(checkPackHeader(header, shorter, "ab".repeat(32))).toMatchObject({ kind: "alien" });
});

test("one flipped bit in a sample is named with its row", () => {
  const header = readPackHeader(pack.bytes, "pack");
  const sample = header.samples[2]!;
  const range = Buffer.from(pack.bytes.subarray(sample.startByte, sample.endByte));
  checkSampleCrc(range, sample, "pack");
  range[range.length - 1]! ^= 0x10;
  expect(refusal(() => checkSampleCrc(range, sample, "packs/x")).message).toContain("row 8");
});

test("a sample decodes from any place in memory, aligned or not", () => {
  const layout = pack.layout.samples[0]!;
  const range = pack.bytes.subarray(layout.startByte, layout.endByte);
  for (let shift = 0; shift < 8; shift += 1) {
    const odd = Buffer.alloc(range.length + shift).subarray(shift);
    range.copy(odd);
    const decoded = decodeSample(odd, layout, "pack");
    if (decoded.kind !== "sample") throw new Error("expected a sample");
    expect([...decoded.ids]).toEqual([4040, 4041, 4042]);
    expect([...decoded.lossMask!]).toEqual([0, 1, 0]);
    expect(decoded.states).toEqual(pack.states.get(40));
  }
});

test("ids that no writer makes, and ranges of another length, are refused", () => {
  const layout = pack.layout.samples[0]!;
  const range = Buffer.from(pack.bytes.subarray(layout.startByte, layout.endByte));
  expect(refusal(() => decodeSample(range.subarray(8), layout, "pack")).message).toContain("got");
  range.writeBigInt64LE(-5n, 8);
  expect(refusal(() => decodeSample(range, layout, "pack")).message).toContain("position 1");
});
