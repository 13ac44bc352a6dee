import { describe, expect, it } from "vitest";
import { readSettings } from "./settings.ts";

const machine = { cores: 8, memoryBytes: 64 * 2 ** 30 };

describe("settings of the onnx engine", () => {
  it("a long sample goes in chunks no larger than a forward may be", () => {
    expect(readSettings({ forward_tokens: 64 }, machine)).toMatchObject({
      forwardTokens: 64,
      prefillChunkTokens: 64,
    });
    expect(readSettings({ forward_tokens: 100_000 }, machine).prefillChunkTokens).toBe(2_048);
    expect(readSettings({ forward_tokens: 64, prefill_chunk_tokens: 16 }, machine).prefillChunkTokens).toBe(
      16,
    );
  });

  it("an option that is null is not given, and one of another type is refused", () => {
    expect(readSettings({ threads: null, forward_tokens: null }, machine).threads).toBe(8);
    expect(() => readSettings({ threads: "8" }, machine)).toThrow();
  });
});
