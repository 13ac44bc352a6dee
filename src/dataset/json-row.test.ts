import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { JsonRowParser } from "./json-row.ts";

const parser = new JsonRowParser();

/** The line stands in the middle of other bytes, as it does in a window of a file. */
function parse(line: string) {
  const bytes = Buffer.from(`9]}${line}\n7,8]}`);
  const row = parser.parse(bytes, 3, 3 + Buffer.byteLength(line));
  return "fault" in row ? row : { ids: [...row.ids], mask: row.mask ? [...row.mask] : null };
}

const space = fc.constantFrom("", " ", "  ", "\t", "\r");
const spaced = (items: string[], [a, b, c]: string[]) => `[${a}${items.join(`${b},${c}`)}${a}]`;
const integers = fc.array(fc.integer({ min: -(2 ** 31), max: 2 ** 31 - 1 }), { maxLength: 20 });

describe("a row of JSON", () => {
  it("is what JSON.parse makes of it, whatever the spaces, the order and the company of its keys", () => {
    fc.assert(
      fc.property(
        integers,
        fc.option(integers, { nil: null }),
        fc.dictionary(fc.string(), fc.jsonValue(), { maxKeys: 3 }),
        fc.array(space, { minLength: 3, maxLength: 3 }),
        fc.boolean(),
        (ids, mask, others, spaces, idsFirst) => {
          const [a, b, c] = spaces as [string, string, string];
          const entries = [
            [JSON.stringify("input_ids"), spaced(ids.map(String), spaces)],
            ...(mask ? [[JSON.stringify("loss_mask"), spaced(mask.map(String), spaces)]] : []),
          ];
          const company = Object.entries(others)
            .filter(([key]) => key !== "input_ids" && key !== "loss_mask")
            .map(([key, value]) => [JSON.stringify(key), JSON.stringify(value)]);
          const all = idsFirst ? [...entries, ...company] : [...company, ...entries];
          const line = `${b}{${a}${all.map(([key, value]) => `${key}${b}:${c}${value}`).join(`${a},${c}`)}${b}}${a}`;
          const { input_ids, loss_mask } = JSON.parse(line);
          expect(parse(line)).toEqual({ ids: input_ids, mask: loss_mask ?? null });
        },
      ),
      { numRuns: 500 },
    );
  });

  it("is a fault wherever JSON.parse throws: no change of one byte passes that it would not", () => {
    const line = '{"input_ids": [1, 20, -3], "x": {"a": [1, "b\\"]"]}, "loss_mask": [0, 1, 1]}';
    for (let at = 0; at < line.length; at += 1) {
      for (const char of ['"', ",", "]", "}", "0", " ", "x", ".", "\\", ""]) {
        const changed = line.slice(0, at) + char + line.slice(at + 1);
        let expected: Record<string, unknown> | null = null;
        try {
          // A typed array knows no -0.
          expected = JSON.parse(changed, (_, value) => (value === 0 ? 0 : value));
        } catch {
          // Not JSON: a fault is expected.
        }
        const found = parse(changed);
        if ("fault" in found) continue;
        expect(expected, changed).not.toBeNull();
        expect(found.ids, changed).toEqual(expected?.input_ids);
        expect(found.mask, changed).toEqual(expected?.loss_mask ?? null);
      }
    }
  });

  it("may name its keys by escapes, or twice (the last counts)", () => {
    expect(parse('{"input\\u005fids":[4]}')).toEqual({ ids: [4], mask: null });
    expect(parse('{"input_ids":[4],"input_ids":[5]}')).toEqual({ ids: [5], mask: null });
  });

  it.each([
    ['{"input_ids":[01]}', "not JSON"],
    ['{"input_ids":[1,]}', "not JSON"],
    ['{"input_ids":[1]', "not JSON"],
    ['{"input_ids":[1]} {}', "not JSON"],
    ['{"input_ids":[1],"x":nul}', "not JSON"],
    ['{"input_ids":[99999999999]}', "at most 2147483647"],
    ['{"input_ids":[1.5]}', "found 1.5 at place 0"],
    ['{"input_ids":[null]}', "found null at place 0"],
    ['{"input_ids":null}', "expected input_ids to be a list"],
    ['{"loss_mask":[1]}', "no input_ids"],
    ["null", "expected a JSON object"],
  ])("%s is a fault", (line, fault) => {
    expect(parse(line)).toMatchObject({ fault: expect.stringContaining(fault) });
  });
});
