import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { BufferPool } from "./buffer-pool.ts";

const MiB = 2 ** 20;

describe("BufferPool", () => {
  it("uses a buffer again for the next pack of like size", () => {
    const pool = new BufferPool(128 * MiB);
    const first = pool.take(61 * MiB)!;
    pool.give(first);
    expect(pool.take(64 * MiB)).toBe(first);
  });

  it("lets a pack that is larger than the budget travel, but only alone", () => {
    const pool = new BufferPool(MiB);
    const large = pool.take(3 * MiB)!;
    expect(large.byteLength).toBeGreaterThanOrEqual(3 * MiB);
    expect(pool.take(1)).toBeNull();
    pool.give(large);
    const small = pool.take(1000)!;
    expect(pool.take(3 * MiB)).toBeNull();
    pool.give(small);
  });

  it("gives large enough buffers and keeps what is in flight within its budget", () => {
    fc.assert(
      fc.property(fc.array(fc.integer({ min: 1, max: 3 * MiB }), { maxLength: 60 }), (sizes) => {
        const pool = new BufferPool(4 * MiB);
        const busy: SharedArrayBuffer[] = [];
        for (const size of sizes) {
          const buffer = pool.take(size);
          if (buffer) {
            expect(buffer.byteLength).toBeGreaterThanOrEqual(size);
            expect(busy).not.toContain(buffer);
            busy.push(buffer);
          } else pool.give(busy.shift()!);
          expect(pool.busyBytes).toBeLessThanOrEqual(4 * MiB);
        }
      }),
    );
  });
});
