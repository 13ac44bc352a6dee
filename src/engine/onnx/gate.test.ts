import { expect, test } from "vitest";
import { injectionResult } from "./gate.ts";

const { POSITIVE_INFINITY: INFINITE, NaN: NAN } = Number;

test.each([
  ["as bf16 allows, and one block off far", { measured: 1e-3, limit: 2e-3, control: 1 }, true],
  ["the model of one block has no neighbour", { measured: 1e-3, limit: 2e-3, control: null }, true],
  ["over the limit", { measured: 3e-3, limit: 2e-3, control: 1 }, false],
  ["no further off one block away", { measured: 1e-3, limit: 2e-3, control: 3e-3 }, false],
  [
    "logits that are not finite prove nothing",
    { measured: INFINITE, limit: INFINITE, control: INFINITE },
    false,
  ],
  ["neither do NaNs", { measured: NAN, limit: NAN, control: NAN }, false],
])("injection: %s", (_, found, ok) => {
  expect(injectionResult({ tap: 3, ...found })).toMatchObject({ ok, tap: ok ? null : 3 });
});
