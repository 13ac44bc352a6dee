import { describe, expect, test } from "vitest";
import { RUN_STATES, StatusDocument } from "../run/status.ts";
import { StatusBoard } from "../run/status-board.ts";
import type { Io } from "./io.ts";
import { chooseMode, eventLine, makeProgress } from "./progress.ts";
import { progressBlock, progressLine, secondsText } from "./progress-lines.ts";
import { statusTable } from "./status-table.ts";

const style = { columns: 80, colour: false };

/** A document as a board makes it, with what a test needs changed. */
function document(change: (document: StatusDocument) => void = () => {}): StatusDocument {
  const board = new StatusBoard(
    {
      appVersion: "0.1.0",
      address: "s3://bucket/prefix/name",
      name: "name",
      part: { index: 1, count: 1 },
      host: "box",
      pid: 7,
      runDirectory: "/state/name",
      spoolDirectory: "/spool",
      spoolBudgetBytes: 2 ** 30,
      resumeCommand: "forebay resume s3://bucket/prefix/name --model DIR",
      settings: {},
      heartbeatIntervalS: 60,
      price: null,
    },
    { nowMs: () => 0, wallMs: () => Date.UTC(2026, 0, 1, 12, 0, 0) },
  );
  const made = board.snapshot();
  made.run.state = "running";
  made.run.phase = "extracting";
  const last_commit_at = "2026-01-01T11:59:00.000Z";
  Object.assign(made.extraction, { total_processed: 500, total: 2_000, agg_rate: 10, last_commit_at });
  Object.assign(made.extraction.tokens, {
    done: 250,
    uploaded: 50,
    spooled: 100,
    in_engine: 100,
    total: 1_000,
    rate: 5_000,
  });
  Object.assign(made.extraction.batches, { committed: 10, total: 40, in_flight: 5 });
  change(made);
  return StatusDocument.parse(made);
}

function fakeIo(options: { tty?: boolean; env?: Record<string, string>; columns?: number } = {}) {
  const shown: string[] = [];
  const io: Io = {
    stdout: (text) => void shown.push(text),
    stderr: (text) => void shown.push(text),
    env: options.env ?? {},
    directory: "/",
    stderrIsTty: options.tty ?? false,
    stdoutIsTty: false,
    columns: () => options.columns ?? 80,
    signal: new AbortController().signal,
  };
  return { io, shown };
}

const hostile = (made: StatusDocument) => {
  made.run.reason = "engine said \u001b[31mred\u001b[0m \u202egnp\nand a second line";
  made.run.action = "x".repeat(500);
  made.run.page_url = "http://127.0.0.1:8080";
  made.bottleneck = { stage: "upload", cause: "bandwidth", confidence: 1, advice: "y".repeat(300) };
  made.alerts = Array.from({ length: 9 }, (_, i) => ({
    level: "warn" as const,
    text: `alert ${i}`,
    action: null,
  }));
};

describe("the terminal block", () => {
  test.each([20, 40, 80, 200])("at %i columns it has at most 12 lines, none that would wrap", (columns) => {
    const lines = progressBlock(document(hostile), { columns, colour: false });
    expect(lines.length).toBeLessThanOrEqual(12);
    for (const line of lines) expect(line.length).toBeLessThan(columns);
  });

  test("what stages hold is stacked in the bar: committed, stored or spooled, in the engine", () => {
    const bar = /\[(.*)\]/.exec(progressBlock(document(), style)[1]!)![1]!;
    expect(bar).toBe(`${"#".repeat(10)}${"=".repeat(6)}${"-".repeat(4)}${" ".repeat(20)}`);
  });

  test("100 % is shown only when every token is committed", () => {
    const almost = document((made) => {
      made.extraction.tokens.done = 999_999;
      made.extraction.tokens.total = 1_000_000;
    });
    expect(progressBlock(almost, style).join("\n")).toContain("99.9 %");
    const all = document((made) => {
      made.extraction.tokens.done = 1_000;
    });
    expect(progressBlock(all, style).join("\n")).toContain("100.0 %");
  });

  test("hostile text is inert, with colours and without", () => {
    for (const colour of [false, true]) {
      const text = progressBlock(document(hostile), { columns: 200, colour }).join("\n");
      expect(text).toContain("red");
      expect(text).not.toContain("\u001b[31m");
      expect(text).not.toContain("\u202e");
    }
  });

  test("colour is in the state alone, and takes no width", () => {
    for (const state of RUN_STATES) {
      const made = document((d) => {
        d.run.state = state;
        d.run.reason = "z".repeat(200);
      });
      const [plain] = progressBlock(made, style);
      const [coloured, ...rest] = progressBlock(made, { ...style, colour: true });
      // biome-ignore lint/suspicious/noControlCharactersInRegex: colours are what is looked for
      expect(coloured!.replaceAll(/\u001b\[[0-9;]*m/g, "")).toBe(plain);
      for (const line of rest) expect(line).not.toContain("\u001b");
    }
  });

  test("without ground for an estimate it says so, and shows no number", () => {
    const text = progressBlock(document(), style).join("\n");
    expect(text).toContain("no estimate yet");
    expect(text).not.toMatch(/NaN|null|undefined/);
  });
});

describe("a run that is starting", () => {
  const starting = (phase: string, detail: string | null) =>
    document((made) => {
      made.run = { ...made.run, state: "starting", phase, reason: detail ? `${phase}: ${detail}` : phase };
      made.extraction.last_commit_at = null;
      made.extraction.tokens.rate = 0;
    });
  const unopened = (phase: string) =>
    document((made) => {
      Object.assign(made.run, { state: "starting", phase, reason: phase });
      Object.assign(made.extraction, { total: 0, total_processed: 0, last_commit_at: null });
      Object.assign(made.extraction.tokens, { done: 0, total: 0, rate: 0 });
    });

  test("says what it is at, and no rates: there are none yet", () => {
    const loading = starting("loading the model", "onnx-0 is loading");
    expect(progressLine(loading)).toBe(
      "starting: loading the model: onnx-0 is loading, 500/2,000 samples are committed",
    );
    expect(progressLine(unopened("opening the store"))).toBe("starting: opening the store");
    for (const made of [loading, unopened("opening the store")]) {
      const shown = [...progressBlock(made, style), ...statusTable(made, [made], "x")].join("\n");
      expect(shown).toContain(made.run.reason);
      expect(shown).not.toMatch(/tokens\/s, |MB\/s|stalled|0\.0 %/);
    }
  });

  test("plain shows a line at each phase, not at each step within it", () => {
    const { io, shown } = fakeIo();
    const view = makeProgress("plain", io, () => 0);
    view.update(starting("reading the dataset", "1 rows"));
    view.update(starting("reading the dataset", "2 rows"));
    view.update(starting("loading the model", null));
    view.update(document());
    expect(shown.map((line) => line.slice(9, 40).trim())).toEqual([
      "starting: reading the dataset:",
      "starting: loading the model, 50",
      "running 25.0 %, 500/2,000 sampl",
    ]);
  });

  test("that it has not committed anything yet is said, and is not a rate of 0", () => {
    const first = document((made) => {
      made.extraction.last_commit_at = null;
      made.extraction.tokens.rate = 0;
    });
    expect(progressLine(first)).toContain("nothing committed yet in this session");
    expect(progressLine(first)).not.toContain("tokens/s");
  });
});

describe("how progress is shown", () => {
  test("auto is a block in a terminal, and lines in a pipe, under CI and in a dumb terminal", () => {
    expect(chooseMode("auto", fakeIo({ tty: true }).io)).toBe("tty");
    expect(chooseMode("auto", fakeIo().io)).toBe("plain");
    expect(chooseMode("auto", fakeIo({ tty: true, env: { CI: "true" } }).io)).toBe("plain");
    expect(chooseMode("auto", fakeIo({ tty: true, env: { TERM: "dumb" } }).io)).toBe("plain");
    expect(chooseMode("quiet", fakeIo({ tty: true }).io)).toBe("quiet");
  });

  test("plain shows a line at each change of state and every 30 s, and the last document at the end", () => {
    const { io, shown } = fakeIo();
    let nowMs = 0;
    const view = makeProgress("plain", io, () => nowMs);
    const at = (ms: number, change?: (made: StatusDocument) => void) => {
      nowMs = ms;
      view.update(document(change));
    };
    at(0);
    at(1_000);
    at(29_000);
    expect(shown.length).toBe(1);
    at(30_000);
    expect(shown.length).toBe(2);
    at(31_000, (made) => {
      made.run.state = "blocked";
    });
    expect(shown.length).toBe(3);
    expect(shown[2]).toContain("blocked");
    at(32_000, (made) => {
      made.run.state = "blocked";
      made.extraction.total_processed = 501;
    });
    view.finish();
    expect(shown.length).toBe(4);
    expect(shown[3]).toContain("501/2,000");
    for (const line of shown)
      expect(line.endsWith("\n") && line.indexOf("\n") === line.length - 1).toBe(true);
  });

  test("plain names the page once, as soon as it has an address", () => {
    const { io, shown } = fakeIo();
    let nowMs = 0;
    const view = makeProgress("plain", io, () => nowMs);
    view.update(document());
    for (; nowMs < 100_000; nowMs += 10_000) {
      view.update(
        document((made) => {
          made.run.page_url = "http://127.0.0.1:8081";
        }),
      );
    }
    expect(shown.filter((line) => line.includes("http"))).toEqual(["12:00:00 page http://127.0.0.1:8081\n"]);
  });

  test("json is one object a line, with every event", () => {
    const { io, shown } = fakeIo();
    const view = makeProgress("json", io, () => 0);
    view.update(document());
    view.event({ at: "t", level: "debug", event: "x.y", n: 1 });
    expect(shown.map((line) => JSON.parse(line).event)).toEqual(["progress", "x.y"]);
  });

  test("a terminal's block is drawn over itself, warnings go above it, NO_COLOR is honoured", () => {
    const { io, shown } = fakeIo({ tty: true, env: { NO_COLOR: "1" } });
    const view = makeProgress("tty", io, () => 0);
    view.update(document());
    const lines = shown[0]!.split("\n").length - 1;
    view.event({ at: "2026-01-01T12:00:01Z", level: "warn", event: "engine.restart", shard: 0 });
    expect(shown[1]).toMatch(
      new RegExp(`^\\u001b\\[${lines}F\\u001b\\[J12:00:01 warn engine.restart shard=0\\n`),
    );
    expect(shown.join("")).not.toContain("\u001b[32;1m");
  });

  test("quiet says nothing", () => {
    const { io, shown } = fakeIo({ tty: true });
    const view = makeProgress("quiet", io, () => 0);
    view.update(document());
    view.event({ at: "t", level: "error", event: "x" });
    view.finish();
    expect(shown).toEqual([]);
  });

  test("one line says all that matters, and stays one line", () => {
    const line = progressLine(document(hostile));
    expect(line).toMatch(/^running 25\.0 %, 500\/2,000 samples, 5,000 tokens\/s/);
    expect(line).not.toContain("\n");
    expect(eventLine({ at: "2026-01-01T12:00:00Z", level: "info", event: "a.b", text: "two words" })).toBe(
      '12:00:00 info a.b text="two words"',
    );
  });

  test("times are told in two units at most", () => {
    expect([0, 59, 60, 3_599, 5_400, 200_000].map(secondsText)).toEqual([
      "0 s",
      "59 s",
      "1 min",
      "1 h 0 min",
      "1 h 30 min",
      "2 d 7 h",
    ]);
  });
});
