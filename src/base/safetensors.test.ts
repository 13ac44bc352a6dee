import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { buildHeader, headerLength, parseHeader } from "./safetensors.ts";

const fixtures = new URL("../../fixtures/models/", import.meta.url).pathname;

test("every golden file's header is read, its tensors covering the file to the last byte", () => {
  let files = 0;
  for (const model of readdirSync(fixtures, { withFileTypes: true })) {
    if (!model.isDirectory()) continue;
    const bytes = readFileSync(join(fixtures, model.name, "golden.safetensors"));
    const header = parseHeader(bytes, model.name, bytes.length);
    expect(header.tensors.get("s5.input_ids")).toMatchObject({ dtype: "I64", shape: [300] });
    files += 1;
  }
  expect(files).toBe(11);
});

test("a header built is a header read, and the data begins at a multiple of 64", () => {
  const header = buildHeader(
    [
      { name: "7.token_ids", dtype: "I64", shape: [3] },
      { name: "7.hidden_states", dtype: "BF16", shape: [3, 2, 4] },
    ],
    { format: "forebay" },
  );
  expect(header.length % 64).toBe(0);
  const parsed = parseHeader(header, "x", header.length + 24 + 48);
  expect(parsed.metadata).toEqual({ format: "forebay" });
  expect(parsed.tensors.get("7.hidden_states")).toMatchObject({
    startByte: header.length + 24,
    endByte: header.length + 72,
  });
  expect(buildHeader([], {}, 256).length).toBe(256);
  expect(() => buildHeader([{ name: "x".repeat(300), dtype: "U8", shape: [1] }], {}, 256)).toThrow("bound");
});

const entry = '{"dtype":"U8","shape":[4],"data_offsets":[0,4]}';

test.each([
  ["a huge length", withLength(2n ** 40n, "{}"), /over the cap/],
  ["a length beyond the file", withLength(5000n, "{}"), /the file has/],
  ["too few bytes to hold a length", Buffer.alloc(5), /at least 8/],
  ["another first byte", framed(' {"a":1}'), /begin with/],
  ["no JSON", framed('{"a":'), /not JSON/],
  ["no UTF-8", framed(Buffer.from([0x7b, 0xff, 0x7d])), /UTF-8/],
  ["a key twice", framed(`{"a":${entry},"a":${entry}}`), /stands twice/],
  ["a key twice in escaped form", framed(`{"a":${entry},"\\u0061":${entry}}`), /stands twice/],
  [
    "a key twice within an entry",
    framed('{"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}}'),
    /twice/,
  ],
  ["an unknown dtype", framed('{"a":{"dtype":"U9","shape":[4],"data_offsets":[0,4]}}'), /unknown dtype/],
  [
    "a prototype's name as dtype",
    framed('{"a":{"dtype":"toString","shape":[4],"data_offsets":[0,4]}}'),
    /dtype/,
  ],
  ["a negative shape", framed('{"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}}'), /shape/],
  [
    "a shape that overflows",
    framed('{"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
    /needs/,
  ],
  ["a hole", framed('{"a":{"dtype":"U8","shape":[3],"data_offsets":[1,4]}}'), /hole/],
  ["an overlap", framed(`{"a":${entry},"b":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}}`), /overlaps/],
  ["less data than the file", framed('{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}'), /describes/],
  ["a metadata value that is no string", framed('{"__metadata__":{"a":1}}'), /not a string/],
])("a header with %s is refused", (_what, bytes, message) => {
  expect(() => parseHeader(bytes, "hostile.safetensors", bytes.length)).toThrow(message);
});

test("a hostile length is refused from the first eight bytes, before anything is allocated", () => {
  expect(() => headerLength(withLength(2n ** 62n, ""), "x")).toThrow(/over the cap/);
});

/** A header for four bytes of data, and those four bytes. */
function framed(header: string | Buffer): Buffer {
  const text = Buffer.from(header as string);
  return Buffer.concat([withLength(BigInt(text.length), text), Buffer.alloc(4)]);
}

function withLength(length: bigint, rest: string | Buffer): Buffer {
  const first8 = Buffer.alloc(8);
  first8.writeBigUInt64LE(length);
  return Buffer.concat([first8, Buffer.from(rest as string)]);
}
