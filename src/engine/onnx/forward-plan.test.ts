import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { attentionBytes, chunkTokens, formForward, needsChunks } from "./forward-plan.ts";

const LIMITS = { forwardTokens: 1_000, prefillChunkTokens: 2_000, attentionBytes: 2 ** 26, heads: 4 };

const waitingList = fc.array(fc.record({ tokens: fc.integer({ min: 1, max: 3_000 }), request: fc.nat(3) }), {
  minLength: 1,
  maxLength: 60,
});

describe("the next forward", () => {
  it("always gets the oldest request on, within every limit", () => {
    fc.assert(
      fc.property(waitingList, (waiting) => {
        const chosen = formForward(waiting, LIMITS);
        const oldest = Math.min(...waiting.map((sample) => sample.request));
        const longest = Math.max(...chosen.map((sample) => sample.tokens));
        const tokens = chosen.reduce((sum, sample) => sum + sample.tokens, 0);
        expect(chosen.some((sample) => sample.request === oldest)).toBe(true);
        expect(new Set(chosen).size).toBe(chosen.length);
        if (chosen.length === 1) return;
        expect(tokens).toBeLessThanOrEqual(LIMITS.forwardTokens);
        expect(chosen.some((sample) => needsChunks(sample.tokens, LIMITS))).toBe(false);
        expect(attentionBytes(chosen.length, longest, longest, LIMITS.heads)).toBeLessThanOrEqual(
          LIMITS.attentionBytes,
        );
        expect(chosen.length * longest).toBeLessThanOrEqual(1.5 * tokens);
      }),
    );
  });

  it("every sample gets its turn", () => {
    fc.assert(
      fc.property(waitingList, (waiting) => {
        const left = new Set(waiting);
        for (let forwards = 0; left.size > 0; forwards += 1) {
          expect(forwards).toBeLessThan(waiting.length);
          for (const sample of formForward([...left], LIMITS)) left.delete(sample);
        }
      }),
    );
  });

  it("fills up from younger requests with what is nearest in length", () => {
    const waiting = [
      { tokens: 300, request: 1 },
      { tokens: 100, request: 1 },
      { tokens: 290, request: 2 },
      { tokens: 290, request: 0 },
      { tokens: 120, request: 2 },
    ];
    const chosen = formForward(waiting, { ...LIMITS, forwardTokens: 900 });
    expect(chosen).toEqual([waiting[3], waiting[2], waiting[0]]);
  });
});

it("chunks cover a sequence exactly, each within the attention's cap", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 50_000 }), (end) => {
      const limits = { ...LIMITS, prefillChunkTokens: 512 };
      let start = 0;
      while (start < end) {
        const tokens = chunkTokens(start, end, limits);
        expect(tokens).toBeGreaterThan(0);
        expect(tokens).toBeLessThanOrEqual(512);
        if (tokens > 1) {
          expect(attentionBytes(1, tokens, start + tokens, limits.heads)).toBeLessThanOrEqual(
            limits.attentionBytes,
          );
        }
        start += tokens;
      }
      expect(start).toBe(end);
    }),
    { numRuns: 20 },
  );
});
