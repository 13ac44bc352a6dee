export { crc32c } from "./crc32c.ts";

/** As 8 lower-case hex digits, the form packs carry. */
export function crcToHex(crc: number): string {
  return (crc >>> 0).toString(16).padStart(8, "0");
}

/** From 8 hex digits; NaN where it is anything else. */
export function crcFromHex(hex: string): number {
  return /^[0-9a-f]{8}$/.test(hex) ? Number.parseInt(hex, 16) : Number.NaN;
}

/** As base64 of the four big-endian bytes, the form of S3's `x-amz-checksum-crc32c`. */
export function crcToBase64(crc: number): string {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(crc >>> 0);
  return bytes.toString("base64");
}

/** From S3's base64 form; NaN where it is anything else. */
export function crcFromBase64(text: string): number {
  const bytes = Buffer.from(text, "base64");
  return bytes.length === 4 ? bytes.readUInt32BE() : Number.NaN;
}

/**
 * CRC-32C of A‖B from the two CRCs and B's length in bytes, without touching the bytes.
 * Source: zlib's crc32_combine (operator matrices over GF(2)), with the Castagnoli polynomial.
 */
export function crc32cCombine(crcA: number, crcB: number, bytesB: number): number {
  let crc = crcA >>> 0;
  let remaining = bytesB;
  for (let power = 0; remaining > 0; power += 1) {
    if (remaining % 2 === 1) crc = times(zeroBytesOperator(power), crc);
    remaining = Math.floor(remaining / 2);
  }
  return (crc ^ crcB) >>> 0;
}

const POLYNOMIAL_REFLECTED = 0x82f63b78;
const operators: Uint32Array[] = [];

/** The matrix that advances a CRC over 2^power zero bytes. */
function zeroBytesOperator(power: number): Uint32Array {
  while (operators.length <= power) {
    const previous = operators.at(-1);
    operators.push(previous ? square(previous) : square(square(square(oneZeroBit()))));
  }
  return operators[power]!;
}

function oneZeroBit(): Uint32Array {
  const matrix = new Uint32Array(32);
  matrix[0] = POLYNOMIAL_REFLECTED;
  for (let bit = 1; bit < 32; bit += 1) matrix[bit] = 2 ** (bit - 1);
  return matrix;
}

function square(matrix: Uint32Array): Uint32Array {
  return matrix.map((column) => times(matrix, column));
}

function times(matrix: Uint32Array, vector: number): number {
  let product = 0;
  for (let bit = 0, rest = vector >>> 0; rest !== 0; bit += 1, rest >>>= 1) {
    if (rest & 1) product ^= matrix[bit]!;
  }
  return product >>> 0;
}
