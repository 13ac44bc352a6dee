/** An integer column's storage: Arrow's Int and Bool, Parquet's INT32, INT64 and BOOLEAN. */
export interface IntType {
  /** 1 is a packed bit, least significant first. */
  bits: 1 | 8 | 16 | 32 | 64;
  signed: boolean;
}

/**
 * `count` little-endian values as int32. `bytes` must be aligned to the values' width where that is over 1.
 * `misfit` is the index of the first value that does not fit, or -1; callers refuse its row.
 */
export function toInt32(
  bytes: Uint8Array,
  type: IntType,
  count: number,
): { values: Int32Array; misfit: number } {
  const { buffer, byteOffset } = bytes;
  switch (type.bits) {
    case 1: {
      const values = new Int32Array(count);
      for (let i = 0; i < count; i += 1) values[i] = (bytes[i >> 3]! >> (i & 7)) & 1;
      return { values, misfit: -1 };
    }
    case 8:
      return {
        values: new Int32Array(
          type.signed ? new Int8Array(buffer, byteOffset, count) : bytes.subarray(0, count),
        ),
        misfit: -1,
      };
    case 16: {
      const narrow = type.signed
        ? new Int16Array(buffer, byteOffset, count)
        : new Uint16Array(buffer, byteOffset, count);
      return { values: new Int32Array(narrow), misfit: -1 };
    }
    case 32: {
      const values = new Int32Array(buffer, byteOffset, count);
      return { values, misfit: type.signed ? -1 : values.findIndex((value) => value < 0) };
    }
    case 64:
      return narrow64(new Int32Array(buffer, byteOffset, 2 * count), count);
  }
}

/** The low words, where the high words are only their sign. */
function narrow64(words: Int32Array, count: number): { values: Int32Array; misfit: number } {
  const values = new Int32Array(count);
  let misfit = -1;
  for (let i = 0; i < count; i += 1) {
    const low = words[2 * i]!;
    if (words[2 * i + 1] !== low >> 31 && misfit === -1) misfit = i;
    values[i] = low;
  }
  return { values, misfit };
}
