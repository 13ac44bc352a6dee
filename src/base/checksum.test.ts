import { crc32c as portable } from "@node-rs/crc32";
import fc from "fast-check";
import { expect, test } from "vitest";
import { crc32c, crc32cCombine, crcFromBase64, crcFromHex, crcToBase64, crcToHex } from "./checksum.ts";
import { loadFast } from "./crc32c.ts";

test("the CRC is Castagnoli's: RFC 3720's check value and its 32 zero bytes", () => {
  expect(crcToHex(crc32c(Buffer.from("123456789")))).toBe("e3069283");
  expect(crcToHex(crc32c(Buffer.alloc(32)))).toBe("8a9136aa");
});

test("long inputs, which the fast implementation takes, have the same CRC, whole and in pieces of any alignment", () => {
  expect(loadFast()).not.toBeNull();
  const bytes = Buffer.alloc(300_001);
  for (let i = 0; i < bytes.length; i += 1) bytes[i] = (i * 2654435761) >>> 24;
  const whole = portable(bytes, 0);
  expect(crc32c(bytes)).toBe(whole);
  expect(loadFast()!(bytes, 0) >>> 0).toBe(whole);
  for (const at of [0, 1, 7, 65_535, 65_536, 130_000, 300_000]) {
    expect(crc32c(bytes.subarray(at), crc32c(bytes.subarray(0, at)))).toBe(whole);
  }
});

test("combining two CRCs equals the CRC of both parts end to end", () => {
  fc.assert(
    fc.property(fc.uint8Array({ maxLength: 3000 }), fc.uint8Array({ maxLength: 3000 }), (a, b) => {
      const whole = crc32c(Buffer.concat([a, b]));
      expect(crc32cCombine(crc32c(a), crc32c(b), b.length)).toBe(whole);
      expect(crc32c(b, crc32c(a))).toBe(whole);
    }),
  );
});

test("combining works past 4 GiB, where a 32-bit length would wrap", () => {
  const zeros = (bytes: number) => crc32cCombine(crc32c(Buffer.from("x")), crcOfZeros(bytes), bytes);
  expect(zeros(2 ** 32 + 3)).not.toBe(zeros(3));
  expect(crc32cCombine(zeros(2 ** 32), crcOfZeros(5), 5)).toBe(zeros(2 ** 32 + 5));
});

test("hex and base64 forms go there and back, and refuse anything else", () => {
  fc.assert(
    fc.property(fc.nat({ max: 2 ** 32 - 1 }), (crc) => {
      expect(crcFromHex(crcToHex(crc))).toBe(crc);
      expect(crcFromBase64(crcToBase64(crc))).toBe(crc);
    }),
  );
  expect(crcFromHex("xyz")).toBeNaN();
  expect(crcFromHex("E3069283")).toBeNaN();
  expect(crcFromBase64("AAA=")).toBeNaN();
});

/** By doubling, so that no 4 GiB buffer is needed. */
function crcOfZeros(bytes: number): number {
  if (bytes <= 1024) return crc32c(Buffer.alloc(bytes));
  const half = Math.floor(bytes / 2);
  const crcHalf = crcOfZeros(half);
  const crcEven = crc32cCombine(crcHalf, crcHalf, half);
  return bytes % 2 === 0 ? crcEven : crc32cCombine(crcEven, crc32c(Buffer.alloc(1)), 1);
}
