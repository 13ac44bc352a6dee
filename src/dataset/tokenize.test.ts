import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { tableFromIPC } from "apache-arrow";
import { parquetWriteFile } from "hyparquet-writer";
import { afterAll, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { ChatTemplate } from "./chat-template.ts";
import type { Message } from "./conversation.ts";
import { superviseText } from "./loss-mask.ts";
import { openDataset } from "./open.ts";
import { TOKENIZE_RECORD, type TokenizeOptions, tokenizeConversations } from "./tokenize.ts";

const FIXTURES = new URL("../../fixtures/", import.meta.url).pathname;
const MODEL = join(FIXTURES, "models/tiny-qwen3");

interface Tokenised {
  input_ids: number[];
  loss_mask: number[];
}

let root: string;
let directory: string;
let count = 0;
beforeAll(() => {
  root = mkdtempSync(join(tmpdir(), "tokenize-"));
});
beforeEach(() => {
  count += 1;
  directory = mkdtempSync(join(root, `${count}-`));
});
afterAll(() => {
  rmSync(root, { recursive: true, force: true });
});

async function rowsOf(path: string): Promise<Tokenised[]> {
  const rows: Tokenised[] = [];
  for await (const batch of (await openDataset(path)).batches()) {
    let at = 0;
    for (const length of batch.lengths) {
      rows.push({
        input_ids: [...batch.ids.subarray(at, at + length)],
        loss_mask: [...batch.lossMask!.subarray(at, at + length)],
      });
      at += length;
    }
  }
  return rows;
}

function inputOf(rows: unknown[], name = "in.jsonl"): string {
  const path = join(directory, name);
  writeFileSync(path, rows.map((row) => `${JSON.stringify(row)}\n`).join(""));
  return path;
}

/** Tokenises some rows with tiny-qwen3; its chat template may be another. */
async function tokenize(rows: unknown[], options: Partial<TokenizeOptions> = {}) {
  const output = join(directory, "out");
  const result = await tokenizeConversations({ modelDir: MODEL, input: inputOf(rows), output, ...options });
  return { result, rows: await rowsOf(output) };
}

function modelWith(template: string): string {
  const model = mkdtempSync(join(directory, "model-"));
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    writeFileSync(join(model, name), readFileSync(join(MODEL, name)));
  }
  writeFileSync(join(model, "chat_template.jinja"), template);
  return model;
}

const reference: (Tokenised & { conversations: Message[] })[] = readFileSync(
  join(FIXTURES, "datasets/tokenised.jsonl"),
  "utf8",
)
  .trim()
  .split("\n")
  .map((line) => JSON.parse(line));

interface Case {
  template: string;
  name: string;
  messages: Message[];
  text: string;
  ids: number[];
  mask: number[] | null;
}

const cases: Case[] = JSON.parse(readFileSync(join(FIXTURES, "tokenize/expected.json"), "utf8"));

describe("equal to transformers", () => {
  it("ids and mask of every row of tokenised.jsonl", async () => {
    const input = join(FIXTURES, "datasets/tokenised.jsonl");
    const output = join(directory, "out");
    const result = await tokenizeConversations({ modelDir: MODEL, input, output });
    const rows = await rowsOf(output);
    expect(rows).toEqual(reference.map(({ input_ids, loss_mask }) => ({ input_ids, loss_mask })));
    expect(result).toMatchObject({
      rows: 40,
      tokens: 8400,
      lossTokens: 5268,
      refusedCount: 0,
      rowsWithoutLoss: 0,
    });
  });

  it("the mask of every row when the template has no generation tags", async () => {
    const template = readFileSync(join(FIXTURES, "tokenize/templates/chatml-untagged.jinja"), "utf8");
    const { rows } = await tokenize(reference, { modelDir: modelWith(template) });
    expect(rows).toEqual(reference.map(({ input_ids, loss_mask }) => ({ input_ids, loss_mask })));
  });

  it.each(cases.map((each) => [each.template, each.name, each] as const))(
    "%s: %s",
    async (template, _, each) => {
      const source = readFileSync(join(FIXTURES, "tokenize/templates", template), "utf8");
      const { rows, result } = await tokenize([{ messages: each.messages }], { modelDir: modelWith(source) });
      expect(result.refused).toEqual([]);
      expect(rows[0]!.input_ids).toEqual(each.ids);
      if (each.mask) expect(rows[0]!.loss_mask).toEqual(each.mask);
    },
  );

  it("the tagged and the untagged ChatML template give the same masks, whatever is said", async () => {
    const tagged = cases.filter((each) => each.template === "chatml-tagged.jinja");
    const untagged = readFileSync(join(FIXTURES, "tokenize/templates/chatml-untagged.jinja"), "utf8");
    const { rows } = await tokenize(
      tagged.map(({ messages }) => ({ messages })),
      { modelDir: modelWith(untagged) },
    );
    tagged.forEach((each, i) => {
      expect(rows[i]!.loss_mask, each.name).toEqual(each.mask);
    });
  });
});

describe("a template without generation tags", () => {
  const specials = ["<|im_start|>", "<|im_end|>"];
  const source = (name: string) => readFileSync(join(FIXTURES, "tokenize/templates", name), "utf8");
  const supervised = (template: string, messages: Message[]) => {
    const { text, spans } = superviseText(new ChatTemplate(template, {}, "test"), messages, specials);
    return spans.map(({ start, end }) => text.slice(start, end));
  };
  const messages = cases.find((each) => each.name === "thinking")!.messages;

  it("that drops earlier reasoning supervises what is left of it, and the last reasoning too", () => {
    expect(supervised(source("thinking-untagged.jinja"), messages)).toEqual([
      "A1<|im_end|>",
      "<think>\nha\n</think>\n\nA2<|im_end|>",
    ]);
  });

  it("supervises the answer and not the same words of the user", () => {
    const same = cases.find((each) => each.name === "same")!.messages;
    expect(supervised(source("chatml-untagged.jinja"), same)).toEqual(["yes<|im_end|>", "yes<|im_end|>"]);
  });

  it("that rewrites the answer is borne where it only ever adds at the end", () => {
    const upper =
      "{% for m in messages %}[{{ m.role }}]{{ m.content | upper }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}";
    expect(
      supervised(upper, [
        { role: "user", content: "a" },
        { role: "assistant", content: "b" },
      ]),
    ).toEqual(["B<|im_end|>"]);
  });

  it("that rewrites the answer and earlier text is refused, not guessed at", () => {
    const odd =
      "{{ messages | length }}{% for m in messages %}[{{ m.role }}]{{ m.content | upper }}\n{% endfor %}";
    expect(() =>
      supervised(odd, [
        { role: "user", content: "a" },
        { role: "assistant", content: "b" },
      ]),
    ).toThrow("the place of message 1 in the rendered text is unknown");
  });

  it("whose own text is trimmed around its generation tags is refused", () => {
    const trims =
      "{% for m in messages %}{% set x %}{% generation %} {{ m.content }} {% endgeneration %}{% endset %}{{ x | trim }}{% endfor %}";
    expect(() => supervised(trims, [{ role: "assistant", content: "b" }])).toThrow("generation tags");
  });
});

describe("the shapes of conversations", () => {
  const [first] = reference;
  const expected = { input_ids: first!.input_ids, loss_mask: first!.loss_mask };
  const shareGpt = first!.conversations.map(({ role, content }) => ({
    from: role === "user" ? "human" : "gpt",
    value: content,
  }));

  it.each([
    ["messages", { messages: first!.conversations }, undefined],
    ["conversations", { conversations: first!.conversations }, undefined],
    ["ShareGPT", { conversations: shareGpt }, undefined],
    ["a column named by hand", { chat: first!.conversations, messages: 7 }, "chat"],
    [
      "keys that are null",
      { tools: null, messages: first!.conversations.map((m) => ({ ...m, name: null })) },
      undefined,
    ],
  ])("%s give the same tokens", async (_, row, messagesKey) => {
    const { rows } = await tokenize([row], { messagesKey });
    expect(rows).toEqual([expected]);
  });

  it("Parquet gives the same tokens", async () => {
    const input = join(directory, "in.parquet");
    parquetWriteFile({
      filename: input,
      columnData: [{ name: "messages", type: "JSON", data: reference.map((row) => row.conversations) }],
      rowGroupSize: 7,
    });
    const output = join(directory, "out");
    await tokenizeConversations({ modelDir: MODEL, input, output });
    expect(await rowsOf(output)).toEqual(
      reference.map(({ input_ids, loss_mask }) => ({ input_ids, loss_mask })),
    );
  });

  it.each([
    ["no messages", { text: "a" }, "expected a list messages or conversations, found the columns text"],
    ["an empty conversation", { messages: [] }, "the conversation is empty"],
    ["a message without role", { messages: [{ content: "a" }] }, "message 0 has no role"],
    ["an unknown speaker", { conversations: [{ from: "narrator", value: "a" }] }, 'from "narrator"'],
    [
      "half a surrogate pair",
      { messages: [{ role: "user", content: "\ud83d" }] },
      "half of a surrogate pair",
    ],
    ["a picture", { messages: [{ role: "user", content: [{ type: "image" }] }] }, "message 0 is no text"],
    ["tools", { messages: [{ role: "user", content: "a" }], tools: [{ name: "x" }] }, "tools"],
    [
      "a content that is no text",
      { messages: [{ role: "assistant", content: 7 }] },
      "the content of message 0 is no text",
    ],
    ["a list", [1], "the row is no object"],
  ])("a row with %s is refused, counted and left out", async (_, row, reason) => {
    const { result, rows } = await tokenize([row, { messages: first!.conversations }]);
    expect(result).toMatchObject({ rows: 1, refusedCount: 1 });
    expect(result.refused[0]!.row).toBe(0);
    expect(result.refused[0]!.reason).toContain(reason);
    expect(rows).toEqual([expected]);
    const record = JSON.parse(readFileSync(join(directory, "out", TOKENIZE_RECORD), "utf8"));
    expect(record.refused).toEqual(result.refused);
  });
});

describe("which rows", () => {
  it("a range of rows gives those rows, and refusals keep the input's numbers", async () => {
    const rows = [...reference.slice(0, 4), { text: "none" }, ...reference.slice(4, 9)];
    const { result, rows: got } = await tokenize(rows, { startRow: 2, endRow: 7 });
    expect(got.map((row) => row.input_ids)).toEqual([2, 3, 4, 5].map((i) => reference[i]!.input_ids));
    expect(result.refused).toMatchObject([{ row: 4 }]);
  });

  it("rows over the bound are left out, or cut with their masks", async () => {
    const limit = 150;
    const isLong = (row: Tokenised) => row.input_ids.length > limit;
    const skipped = await tokenize(reference, { maxTokens: limit });
    expect(skipped.result.longSkipped).toBe(reference.filter(isLong).length);
    expect(skipped.rows.length).toBe(reference.filter((row) => !isLong(row)).length);
    const cut = await tokenize(reference, {
      maxTokens: limit,
      long: "truncate",
      output: join(directory, "cut"),
    });
    const got = await rowsOf(join(directory, "cut"));
    expect(cut.result.longTruncated).toBe(reference.filter(isLong).length);
    expect(got).toEqual(
      reference.map(({ input_ids, loss_mask }) => ({
        input_ids: input_ids.slice(0, limit),
        loss_mask: loss_mask.slice(0, limit),
      })),
    );
  });

  it("rows in which the assistant says nothing are kept and counted", async () => {
    const { result } = await tokenize([{ messages: [{ role: "user", content: "anyone?" }] }]);
    expect(result).toMatchObject({ rows: 1, rowsWithoutLoss: 1, lossTokens: 0 });
  });
});

describe("the directory it makes", () => {
  it("is Arrow that Arrow's own reader reads, with the columns and types that trainers expect", async () => {
    await tokenize(reference);
    const table = tableFromIPC(readFileSync(join(directory, "out", "data-00000-of-00001.arrow")));
    expect(table.schema.fields.map((field) => `${field.name} ${field.type}`)).toEqual([
      "input_ids List<Int32>",
      "loss_mask List<Int64>",
      "seq_len Int64",
    ]);
    expect(table.numRows).toBe(40);
    expect([...table.getChild("seq_len")!]).toEqual(reference.map((row) => BigInt(row.input_ids.length)));
  });

  it("is not there after a broken line, and the line is named", async () => {
    const input = inputOf(reference.slice(0, 2));
    writeFileSync(input, `${readFileSync(input, "utf8")}\n{"messages": [\n`);
    const output = join(directory, "out");
    const error = await tokenizeConversations({ modelDir: MODEL, input, output }).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(RunError);
    expect((error as RunError).message).toContain("line 4: not JSON");
    expect(readdirSync(directory)).toEqual(["in.jsonl"]);
  });

  it("is never written over one that is there", async () => {
    await tokenize(reference.slice(0, 1));
    const before = readdirSync(join(directory, "out"));
    const error = await tokenize(reference).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(RunError);
    expect((error as RunError).message).toBe("it is there already");
    expect(readdirSync(join(directory, "out"))).toEqual(before);
    expect((await rowsOf(join(directory, "out"))).length).toBe(1);
    expect(readdirSync(directory).sort()).toEqual(["in.jsonl", "out"]);
  });

  it.each([
    ["no rows at all", [], "found none"],
    [
      "only rows that are refused",
      [{ a: 1 }, { b: 1 }],
      "none of its rows could be tokenised (2 refused); row 0",
    ],
  ])("is not made from %s", async (_, rows, message) => {
    const error = await tokenize(rows).catch((e: unknown) => e);
    expect((error as RunError).message).toContain(message);
    expect((error as RunError).exit).toBe(EXIT.configuration);
    expect(existsSync(join(directory, "out"))).toBe(false);
  });

  it("is not made when a thread dies", async () => {
    // Beside the source there is no compiled worker entry, so each thread dies at its start.
    await expect(tokenize(reference, { threads: 2 })).rejects.toThrow("tokenize-worker.js");
    expect(readdirSync(directory)).toEqual(["in.jsonl"]);
  });

  it("is not made by an abort", async () => {
    const signal = AbortSignal.abort(new Error("enough"));
    await expect(tokenize(reference, { signal })).rejects.toThrow("enough");
    expect(readdirSync(directory)).toEqual(["in.jsonl"]);
  });
});

describe("a model directory that will not do", () => {
  async function refusal(modelDir: string): Promise<RunError> {
    const error = await tokenize(reference.slice(0, 1), { modelDir }).catch((e: unknown) => e);
    expect(error).toBeInstanceOf(RunError);
    expect((error as RunError).exit).toBe(EXIT.configuration);
    return error as RunError;
  }

  it("without a tokenizer says so", async () => {
    const model = modelWith("{{ 1 }}");
    rmSync(join(model, "tokenizer.json"));
    expect((await refusal(model)).subject).toContain("tokenizer.json");
  });

  it("without a chat template says what was looked for", async () => {
    const model = modelWith("");
    rmSync(join(model, "chat_template.jinja"));
    writeFileSync(join(model, "tokenizer_config.json"), "{}");
    expect((await refusal(model)).message).toContain("looked for chat_template.jinja");
  });

  it("with a template that does not parse says why", async () => {
    expect((await refusal(modelWith("{% for %}"))).message).toContain("cannot be used here");
  });

  it("with a template that refuses every row gives its reason", async () => {
    const error = await refusal(modelWith("{{ raise_exception('only roses') }}"));
    expect(error.message).toContain("only roses");
  });

  it("with named templates uses the default one", async () => {
    const model = modelWith("");
    rmSync(join(model, "chat_template.jinja"));
    const config = JSON.parse(readFileSync(join(MODEL, "tokenizer_config.json"), "utf8"));
    const named = [
      { name: "tool_use", template: "{{ raise_exception('no') }}" },
      { name: "default", template: config.chat_template },
    ];
    writeFileSync(join(model, "tokenizer_config.json"), JSON.stringify({ ...config, chat_template: named }));
    const { rows } = await tokenize(reference.slice(0, 1), { modelDir: model });
    expect(rows[0]!.input_ids).toEqual(reference[0]!.input_ids);
  });
});
