import { expect, test } from "vitest";
import type { PackExpectation } from "../pack/check.ts";
import { StoreGate } from "./store-gate.ts";
import { UploadQueue } from "./upload-queue.ts";

const gateOf = () =>
  new StoreGate({ reprobeMs: 60_000, backoff: { baseMs: 100, capMs: 1_000 }, random: () => 1 });

function queueOf(...batches: number[]): UploadQueue {
  const queue = new UploadQueue();
  for (const batch of batches)
    queue.add({ batch, path: "", bytes: 1, crc32c: null }, {} as PackExpectation, false);
  return queue;
}

/** The batches that are due, and when the others are. */
function look(queue: UploadQueue, nowMs: number, gate = gateOf()) {
  const later: number[] = [];
  const due = [...queue.due(nowMs, gate, (dueMs) => later.push(dueMs))];
  return { due: due.map(({ pack }) => pack.batch), later };
}

/** Each entry, whatever it is at. */
const entries = (queue: UploadQueue) => [...queue.due(Number.MAX_VALUE, gateOf(), () => {})];

test("packs are due in the order in which they came, each batch once", () => {
  const queue = queueOf(5, 2, 9);
  expect(() => queueOf(5, 5)).toThrow("batch 5 is being uploaded already");
  expect(look(queue, 0)).toEqual({ due: [5, 2, 9], later: [] });
  queue.remove(2);
  expect([look(queue, 0).due, queue.size]).toEqual([[5, 9], 2]);
});

test("one in flight or on its way out is not due, one whose key needs a person is tried again later", () => {
  const queue = queueOf(1, 2, 3, 4);
  const [flying, leaving, stuck] = entries(queue);
  flying!.state = "flying";
  leaving!.state = "leaving";
  Object.assign(stuck!, { state: "stuck", notBeforeMs: 500 });
  expect(look(queue, 0)).toEqual({ due: [4], later: [500] });
  expect(look(queue, 500).due).toEqual([3, 4]);
  expect([queue.waiting, queue.stuck, queue.size]).toEqual([1, [3], 4]);
});

test("a store that asks for patience is left alone by all, and the longest answer counts", () => {
  const queue = queueOf(1, 2);
  queue.holdUntil(900);
  queue.holdUntil(300);
  expect(look(queue, 899)).toEqual({ due: [], later: [900, 900] });
  expect(look(queue, 900).due).toEqual([1, 2]);
});

test("while the store is down its gate's clock decides, and packs that need a person wait", () => {
  const queue = queueOf(1, 2);
  const [failed, stuck] = entries(queue);
  failed!.notBeforeMs = 5_000;
  stuck!.state = "stuck";
  const gate = gateOf();
  for (let i = 0; i < 3; i += 1) gate.failed(0, "no answer", false);
  expect(gate.state).toBe("down");
  expect(look(queue, 0, gate)).toEqual({ due: [], later: [gate.notBeforeMs] });
  expect(look(queue, gate.notBeforeMs, gate).due).toEqual([1]);
  gate.served(true);
  expect(look(queue, 100, gate)).toEqual({ due: [2], later: [5_000] });
  queue.hurry();
  expect(look(queue, 100, gate).due).toEqual([1, 2]);
});
