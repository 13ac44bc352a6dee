/** Numbers as bf16 patterns: what vLLM writes, however it computes, becomes what packs hold. */

/** The float of each bf16 pattern: 256 KiB, which the second-level cache holds. */
export const BF16_FLOATS: Float32Array = floatsOfAllPatterns();

function floatsOfAllPatterns(): Float32Array {
  const words = new Uint32Array(65_536);
  for (let bits = 0; bits < 65_536; bits += 1) words[bits] = bits << 16;
  return new Float32Array(words.buffer);
}

/** f32 patterns to bf16, to the nearest, ties to even; a NaN stays one. `into` is as long as `words`. */
export function bf16OfFloat32(words: Uint32Array, into: Uint16Array): void {
  for (let i = 0; i < words.length; i += 1) into[i] = roundWord(words[i]!);
}

/** f16 patterns to bf16 likewise; the exponent of every f16 fits. */
export function bf16OfFloat16(halves: Uint16Array, into: Uint16Array): void {
  for (let i = 0; i < halves.length; i += 1) into[i] = BF16_OF_F16[halves[i]!]!;
}

function roundWord(word: number): number {
  const isNotANumber = (word & 0x7fff_ffff) > 0x7f80_0000;
  // A NaN whose upper bits are zero would become an infinity.
  if (isNotANumber) return (word >>> 16) | 0x0040;
  return (word + 0x7fff + ((word >>> 16) & 1)) >>> 16;
}

const BF16_OF_F16: Uint16Array = bf16OfAllHalves();

function bf16OfAllHalves(): Uint16Array {
  const float = new Float32Array(1);
  const word = new Uint32Array(float.buffer);
  return Uint16Array.from({ length: 65_536 }, (_, half) => {
    float[0] = floatOfHalf(half);
    return roundWord(word[0]!);
  });
}

/** Source: IEEE 754 binary16. */
function floatOfHalf(half: number): number {
  const sign = half & 0x8000 ? -1 : 1;
  const exponent = (half >>> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}
