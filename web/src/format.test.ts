import { expect, test } from "vitest";
import {
  bytes,
  clock,
  count,
  duration,
  money,
  percent,
  rate,
  sentence,
  short,
  title,
  UNKNOWN,
} from "./format.ts";

test("unknown is a dash and never 0", () => {
  for (const format of [count, short, rate, percent, bytes, duration]) expect(format(null)).toBe(UNKNOWN);
  expect(money(null, "USD")).toBe(UNKNOWN);
  expect(clock(null, 0)).toBe(UNKNOWN);
});

test.each([
  [0, "0 s"],
  [59.4, "59 s"],
  [59.6, "1 min 00 s"],
  [250, "4 min 10 s"],
  [3_599.4, "59 min 59 s"],
  [3_600, "1 h 00 min"],
  [11_100, "3 h 05 min"],
  [86_399, "1 d 0 h"],
  [187_200, "2 d 4 h"],
  [-3, "0 s"],
])("%d s reads %s", (seconds, text) => {
  expect(duration(seconds)).toBe(text);
});

test("what is not all is never 100 %", () => {
  expect(percent(0.999_99, 1)).toBe("99.9 %");
  expect(percent(0.999_99)).toBe("99 %");
  expect(percent(1, 1)).toBe("100.0 %");
  expect(percent(0)).toBe("0 %");
  expect(percent(Number.NaN)).toBe(UNKNOWN);
});

test("large counts are short, small ones exact", () => {
  expect(short(999_999)).toBe("999,999");
  expect(short(306_118_310)).toBe("306.1 M");
  expect(short(15_700_000_000)).toBe("15.70 G");
  expect(rate(3.14)).toBe("3.1");
  expect(rate(15_489.7)).toBe("15,490");
});

test("money in a currency that Intl does not know still shows", () => {
  expect(money(12.5, "USD")).toBe("$12.50");
  expect(money(1_234.5, "USD")).toBe("$1,235");
  expect(money(12.5, "credits!")).toBe("12.50 credits!");
});

test("a time of another day names the day", () => {
  const nowMs = Date.parse("2026-03-10T12:00:00");
  expect(clock("2026-03-10T14:32:00", nowMs)).toBe("14:32");
  expect(clock("2026-03-11T02:05:00", nowMs)).toBe("Wed 02:05");
  expect(clock("2026-04-01T02:05:00", nowMs)).toBe("1 Apr 02:05");
});

test("a reason reads as a sentence, whether it was one or not", () => {
  expect(sentence("loading the model: onnx-0 is loading")).toBe("Loading the model: onnx-0 is loading.");
  expect(sentence("All is well.")).toBe("All is well.");
  expect(sentence("")).toBe(".");
});

test("a state reads as words", () => {
  expect(title("done_with_skips")).toBe("Done with skips");
});
