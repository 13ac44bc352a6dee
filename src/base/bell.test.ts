import { expect, test } from "vitest";
import { Bell } from "./bell.ts";

test("a ring wakes all who wait for it, once, and not those who gave up", async () => {
  const bell = new Bell();
  const giveUp = new AbortController();
  const woken: string[] = [];
  const first = bell.wait().then(() => woken.push("first"));
  const second = bell.wait(giveUp.signal);
  giveUp.abort(new Error("gave up"));
  await expect(second).rejects.toThrow("gave up");
  await expect(bell.wait(giveUp.signal)).rejects.toThrow("gave up");
  bell.ring();
  await first;
  const third = bell.wait().then(() => woken.push("third"));
  await Promise.resolve();
  expect(woken).toEqual(["first"]);
  bell.ring();
  await third;
  expect(woken).toEqual(["first", "third"]);
});
