import { expect, test } from "vitest";
import { Changes } from "./changes.ts";

test("a change wakes all who wait for it, once, and not those who gave up", async () => {
  const changes = new Changes();
  const giveUp = new AbortController();
  const woken: string[] = [];
  const first = changes.next().then(() => woken.push("first"));
  const second = changes.next(giveUp.signal);
  giveUp.abort(new Error("gave up"));
  await expect(second).rejects.toThrow("gave up");
  await expect(changes.next(giveUp.signal)).rejects.toThrow("gave up");
  changes.tell();
  await first;
  const third = changes.next().then(() => woken.push("third"));
  await Promise.resolve();
  expect(woken).toEqual(["first"]);
  changes.tell();
  await third;
  expect(woken).toEqual(["first", "third"]);
});
