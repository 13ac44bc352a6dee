import { expect, test } from "vitest";
import { VERBS, verbsFor } from "./verbs.ts";

test.each(Object.keys(VERBS))("%s is filed under its own name, and loaded alone", async (name) => {
  expect((await verbsFor(name)).map((verb) => verb.name)).toEqual([name]);
});

test.each([undefined, "--help", "help", "verfy", "constructor"])(
  "%s names no verb: all are there to choose from",
  async (word) => {
    expect((await verbsFor(word)).map((verb) => verb.name)).toEqual(Object.keys(VERBS));
  },
);
