import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { Budget, type Claim } from "./budget.ts";

const BLOCK = 4096;

function makeBudget(options: Partial<ConstructorParameters<typeof Budget>[0]> = {}): Budget {
  return new Budget({
    budgetBytes: 10 * BLOCK,
    floorBytes: 0,
    blockBytes: BLOCK,
    freeBytes: async () => Number.MAX_SAFE_INTEGER,
    nowMs: () => 0,
    recheckMs: 1,
    ...options,
  });
}

/** Lets every promise that can settle do so. */
const settled = () => new Promise((resolve) => setImmediate(resolve));

describe("Budget", () => {
  it("counts whole blocks, as the disk does", async () => {
    const budget = makeBudget();
    const claim = await budget.acquire(1);
    expect([claim.bytes, budget.usedBytes]).toEqual([BLOCK, BLOCK]);
    claim.release();
    claim.release();
    expect(budget.usedBytes).toBe(0);
  });

  it("serves claims in their order: a small one does not overtake a large one that waits", async () => {
    const budget = makeBudget();
    const first = await budget.acquire(8 * BLOCK);
    const granted: string[] = [];
    void budget.acquire(6 * BLOCK).then(() => granted.push("large"));
    void budget.acquire(BLOCK).then(() => granted.push("small"));
    await settled();
    expect([granted, budget.waiting().count]).toEqual([[], 2]);
    first.release();
    await settled();
    expect(granted).toEqual(["large", "small"]);
  });

  it("refuses at once what could never fit, without holding up the others", async () => {
    const budget = makeBudget();
    await expect(budget.acquire(10 * BLOCK + 1)).rejects.toThrow("can never fit the budget");
    expect((await budget.acquire(10 * BLOCK)).bytes).toBe(10 * BLOCK);
  });

  it("lets the next one in when the one before it gives up", async () => {
    const budget = makeBudget();
    await budget.acquire(8 * BLOCK);
    const abort = new AbortController();
    const large = budget.acquire(6 * BLOCK, abort.signal);
    const small = budget.acquire(BLOCK);
    abort.abort(new Error("stopping"));
    await expect(large).rejects.toThrow("stopping");
    expect((await small).bytes).toBe(BLOCK);
    expect(budget.usedBytes).toBe(9 * BLOCK);
  });

  it("grants nothing after the budget was lowered below what lies there, until that has drained", async () => {
    const budget = makeBudget();
    const old = [budget.adopt(8 * BLOCK), budget.adopt(5 * BLOCK)];
    let granted = false;
    void budget.acquire(BLOCK).then(() => {
      granted = true;
    });
    await settled();
    expect([granted, budget.usedBytes]).toEqual([false, 13 * BLOCK]);
    old[0]!.release();
    await settled();
    expect([granted, budget.usedBytes]).toEqual([true, 6 * BLOCK]);
  });

  it("keeps the floor of the disk free, and asks again by itself", async () => {
    let free = 3 * BLOCK;
    const budget = makeBudget({ floorBytes: 2 * BLOCK, freeBytes: async () => free });
    await budget.acquire(BLOCK);
    const waiting = budget.acquire(BLOCK);
    await settled();
    expect([budget.refusedByDisk, budget.usedBytes]).toEqual([true, BLOCK]);
    free = 4 * BLOCK;
    expect((await waiting).bytes).toBe(BLOCK);
  });

  it("never exceeds budget or disk at any instant, under random interleavings", async () => {
    const operation = fc.oneof(
      fc.record({ kind: fc.constant("acquire" as const), blocks: fc.integer({ min: 1, max: 7 }) }),
      fc.record({ kind: fc.constantFrom("release", "settle", "abort", "tick"), pick: fc.nat(50) }),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(operation, { maxLength: 80 }),
        fc.scheduler(),
        async (operations, scheduler) => {
          const disk = { totalBytes: 8 * BLOCK, writtenBytes: 0 };
          const floorBytes = BLOCK;
          const held: { claim: Claim; isWritten: boolean }[] = [];
          const aborts: AbortController[] = [];
          const budget = makeBudget({
            floorBytes,
            freeBytes: () => {
              const free = disk.totalBytes - disk.writtenBytes;
              return scheduler.schedule(Promise.resolve(free));
            },
          });
          // Collected, not thrown: some checks run in callbacks whose failure would not reach the property.
          const faults: string[] = [];
          const check = () => {
            const promised = held.reduce((sum, h) => sum + (h.isWritten ? 0 : h.claim.bytes), 0);
            const heldBytes = held.reduce((sum, { claim }) => sum + claim.bytes, 0);
            const freeBytes = disk.totalBytes - disk.writtenBytes - promised;
            if (heldBytes > budget.usedBytes) faults.push(`held ${heldBytes}, counted ${budget.usedBytes}`);
            if (budget.usedBytes > budget.budgetBytes) faults.push(`used ${budget.usedBytes}`);
            if (freeBytes < floorBytes) faults.push(`free ${freeBytes}`);
          };
          const hold = (claim: Claim) => {
            held.push({ claim, isWritten: false });
            check();
          };
          for (const op of operations) {
            if (op.kind === "acquire") {
              const abort = new AbortController();
              aborts.push(abort);
              budget.acquire(op.blocks * BLOCK, abort.signal).then(hold, () => {});
            } else if (op.kind === "tick") {
              if (scheduler.count() > 0) await scheduler.waitOne();
              await settled();
            } else if (op.kind === "abort") {
              aborts[op.pick % Math.max(aborts.length, 1)]?.abort();
            } else if (held.length > 0) {
              const at = op.pick % held.length;
              const entry = held[at]!;
              if (op.kind === "settle" && !entry.isWritten) {
                entry.isWritten = true;
                disk.writtenBytes += entry.claim.bytes;
                entry.claim.settle();
              } else if (op.kind === "release") {
                held.splice(at, 1);
                if (entry.isWritten) disk.writtenBytes -= entry.claim.bytes;
                entry.claim.release();
              }
            }
            check();
          }
          budget.close();
          for (const abort of aborts) abort.abort();
          await scheduler.waitIdle();
          await settled();
          for (const { claim } of held.splice(0)) claim.release();
          expect(budget.usedBytes).toBe(0);
          expect(faults).toEqual([]);
        },
      ),
      { numRuns: 200 },
    );
  });
});
