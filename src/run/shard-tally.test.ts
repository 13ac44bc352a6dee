import { expect, test } from "vitest";
import { ShardTally } from "./shard-tally.ts";
import type { Amount } from "./tally.ts";

function batchOf(lengths: number[]): Amount {
  return {
    batches: 1,
    samples: lengths.length,
    tokens: lengths.reduce((sum, tokens) => sum + tokens, 0),
    tokensSquared: lengths.reduce((sum, tokens) => sum + tokens ** 2, 0),
    bytes: 1,
  };
}

test("a commit counts for the engine that made the batch, once, and for none where another session made it", () => {
  const shards = new ShardTally(60, () => 0);
  shards.finished(0, 10, batchOf([5]));
  shards.finished(1, 11, batchOf([5, 5]));
  expect(shards.of(1).lastCommitAt).toBeNull();
  shards.committed(11, "12:00");
  shards.committed(11, "12:01");
  shards.committed(99, "12:02");
  expect(shards.counts()).toEqual([
    { shard: 0, samples: 1, tokens: 5, batches: 1, committed: 0 },
    { shard: 1, samples: 2, tokens: 10, batches: 1, committed: 1 },
  ]);
  expect(shards.of(1).lastCommitAt).toBe("12:00");
});

test("the mean length is that of the sample a token stands in, and follows what is computed", () => {
  const shards = new ShardTally(60, () => 0);
  expect(shards.meanTokens()).toBeNull();
  // 300 tokens stand in a sample of 300, 100 in one of 100: (300 x 300 + 100 x 100) / 400.
  shards.finished(0, 0, batchOf([300, 100]));
  expect(shards.meanTokens()).toBe(250);
  for (let batch = 1; batch < 100; batch += 1) shards.finished(0, batch, batchOf([50, 50]));
  expect(shards.meanTokens()).toBeCloseTo(50, 0);
});
