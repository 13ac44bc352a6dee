import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { parseHeader } from "../../src/base/safetensors.ts";

export interface StoredSample {
  ids: number[];
  /** [tokens, taps, hidden] bf16 */
  states: Uint16Array;
}

/** All samples of all packs below a directory, by row; read by the format's rules alone, not by our reader. */
export function readPacks(directory: string): Map<number, StoredSample> {
  const samples = new Map<number, StoredSample>();
  for (const entry of readdirSync(directory, { recursive: true, withFileTypes: true })) {
    // A kill may leave a temporary, which is no object.
    if (!entry.isFile() || !entry.name.endsWith(".safetensors")) continue;
    const path = join(entry.parentPath, entry.name);
    const bytes = readFileSync(path);
    const { tensors } = parseHeader(bytes, path, bytes.length);
    const data = (tensor: string) => {
      const { startByte, endByte } = tensors.get(tensor)!;
      return Uint8Array.from(bytes.subarray(startByte, endByte)).buffer;
    };
    for (const tensor of tensors.keys()) {
      const row = /^(\d+)\.token_ids$/.exec(tensor)?.[1];
      if (row === undefined) continue;
      const ids = Array.from(new BigInt64Array(data(tensor)), Number);
      samples.set(Number(row), { ids, states: new Uint16Array(data(`${row}.hidden_states`)) });
    }
  }
  return samples;
}
