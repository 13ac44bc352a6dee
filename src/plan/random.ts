/** Uniform whole numbers in [0, n), 1 <= n <= 2^32; the same on every machine for the same seed. */
export type RandomBelow = (n: number) => number;

/**
 * xoshiro128** 1.1 (Blackman and Vigna, public domain), its state filled by splitmix32 (steps of 0x9e3779b9 through
 * MurmurHash3's finaliser) from the two halves of
 * `seed` (0 <= seed < 2^53). 32-bit whole-number arithmetic only, so no platform can differ.
 */
export function seededRandom(seed: number): RandomBelow {
  const low = splitmix32(seed >>> 0);
  const high = splitmix32(Math.floor(seed / 2 ** 32) ^ 0x9e3779b9);
  let a = low();
  let b = high();
  let c = low();
  // Not all four may be zero.
  let d = high() | 1;
  const next = () => {
    const result = Math.imul(rotl(Math.imul(b, 5), 7), 9) >>> 0;
    const t = b << 9;
    c ^= a;
    d ^= b;
    b ^= c;
    a ^= d;
    c ^= t;
    d = rotl(d, 11);
    return result;
  };
  return (n) => {
    // Draws in the last, incomplete multiple of n are drawn again: no value is more likely than another.
    const limit = 2 ** 32 - (2 ** 32 % n);
    let draw = next();
    while (draw >= limit) draw = next();
    return draw % n;
  };
}

/** Fisher-Yates over values[start .. end), in place. */
export function shuffle(values: Uint32Array, random: RandomBelow, start = 0, end = values.length): void {
  for (let i = end - 1; i > start; i -= 1) {
    const j = start + random(i - start + 1);
    const value = values[i]!;
    values[i] = values[j]!;
    values[j] = value;
  }
}

function splitmix32(seed: number): () => number {
  let state = seed | 0;
  return () => {
    state = (state + 0x9e3779b9) | 0;
    let z = state;
    z = Math.imul(z ^ (z >>> 16), 0x85ebca6b);
    z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
    return z ^ (z >>> 16);
  };
}

function rotl(x: number, bits: number): number {
  return (x << bits) | (x >>> (32 - bits));
}
