import { expect, test } from "vitest";
import { ioBuffer, sharedBytes, sharedIoBuffer, sharedView } from "./io-buffer.ts";

test("a buffer to read into has the asked size, and does not begin where malloc's block does", () => {
  for (const bytes of [0, 1, 2 ** 20]) {
    const buffer = ioBuffer(bytes);
    expect(buffer).toHaveLength(bytes);
    expect(buffer.byteOffset).toBe(48);
    const shared = sharedIoBuffer(bytes);
    expect(sharedBytes(shared)).toBe(bytes);
    expect(sharedView(shared)).toHaveLength(bytes);
    expect(sharedView(shared).byteOffset).toBe(48);
  }
});
