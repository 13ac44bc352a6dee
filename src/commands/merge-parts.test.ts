import { describe, expect, test } from "vitest";
import { scriptedRun } from "../../bench/support/scripted-run.mjs";
import { StatusDocument } from "../run/status.ts";
import { lost, withLost } from "./lost.ts";
import { mergeParts, presentParts, type StoredAmounts } from "./merge-parts.ts";
import { statusTable } from "./status-table.ts";

/** A document of a part that has done a quarter, with what a test needs changed. */
function document(change: (document: StatusDocument) => void = () => {}): StatusDocument {
  const made = scriptedRun({ nowMs: () => Date.UTC(2026, 0, 1, 12, 0, 0), engines: 2 }).snapshot();
  const { extraction } = made;
  Object.assign(extraction, { total_processed: 500, total: 2_000, agg_rate: 10 });
  Object.assign(extraction.tokens, {
    done: 250,
    uploaded: 50,
    spooled: 100,
    in_engine: 100,
    total: 1_000,
    rate: 5_000,
  });
  Object.assign(extraction.batches, { committed: 10, total: 40, in_flight: 5 });
  made.spool.budget_bytes = 2 ** 30;
  change(made);
  return StatusDocument.parse(made);
}

const hostile = (made: StatusDocument) => {
  made.run.reason = "engine said \u001b[31mred\u001b[0m \u202egnp\nand a second line";
  made.run.action = "x".repeat(500);
  made.bottleneck = { stage: "upload", cause: "bandwidth", confidence: 1, advice: "y".repeat(300) };
};

describe("several parts, and silent ones", () => {
  const part = (index: number, change: (made: StatusDocument) => void = () => {}) =>
    document((made) => {
      made.run.part = { index, count: 2 };
      change(made);
    });

  test("a machine is lost after three intervals without a heartbeat, by the store's clock alone", () => {
    const at = (silentS: number) =>
      withLost({ document: document(), lastModifiedMs: 1_000_000, serverDateMs: 1_000_000 + silentS * 1000 });
    expect(at(180).run.state).toBe("running");
    expect(at(181).run.state).toBe("lost");
    expect(at(181).run.action).toContain("forebay resume");
    expect(at(181).extraction.tokens.rate).toBe(0);
  });

  test("a machine that said how it ended is not lost, nor is one whose store tells no times", () => {
    const done = document((made) => {
      made.run.state = "done";
    });
    expect(withLost({ document: done, lastModifiedMs: 0, serverDateMs: 1e9 }).run.state).toBe("done");
    expect(withLost({ document: document(), lastModifiedMs: null, serverDateMs: 1e9 }).run.state).toBe(
      "running",
    );
    expect(lost(done, "gone").run.state).toBe("done");
  });

  test("what was under way on a lost machine is not any more; what was in its spool may still be there", () => {
    const gone = lost(document(), "gone").extraction;
    expect([gone.tokens.in_engine, gone.tokens.spooled, gone.eta.p50_s, gone.eta_hours]).toEqual([
      0,
      100,
      null,
      null,
    ]);
  });

  const counts = (share: number) => ({
    batches: share * 80,
    samples: share * 4_000,
    tokens: share * 2_000,
    bytes: share * 8_000,
  });
  const amounts: StoredAmounts = { committed: counts(0.5), total: counts(1) };

  test("rates, engines and spools of parts add up; what is done and to do is what the store and its plan hold", () => {
    const merged = mergeParts([part(1), part(2)], amounts);
    const { extraction } = merged;
    expect(extraction.tokens).toMatchObject({ rate: 10_000, done: 1_000, total: 2_000, spooled: 200 });
    expect([extraction.total_processed, extraction.total]).toEqual([2_000, 4_000]);
    expect(extraction.batches).toEqual({ committed: 40, total: 80, in_flight: 10 });
    expect(merged.spool.budget_bytes).toBe(2 ** 31);
    expect(() => StatusDocument.parse(merged)).not.toThrow();
  });

  test("where the store cannot be asked, parts add up to the run: each counts its own", () => {
    const { extraction } = mergeParts([part(1), part(2)], null);
    expect([extraction.total_processed, extraction.total]).toEqual([1_000, 4_000]);
    expect(extraction.tokens).toMatchObject({ done: 500, total: 2_000 });
  });

  test("what a heartbeat still calls under way is not counted again once the store holds it", () => {
    const almost: StoredAmounts = { committed: { ...counts(1), tokens: 1_900 }, total: counts(1) };
    const { tokens } = mergeParts([part(1), part(2)], almost).extraction;
    expect(tokens.uploaded + tokens.spooled + tokens.in_engine).toBe(100);
  });

  test("the state shown is that of the part which most needs a person, and says which", () => {
    const blocked = part(2, (made) => {
      made.run.state = "blocked";
      made.run.reason = "credentials";
    });
    const merged = mergeParts([part(1), blocked], null);
    expect([merged.run.state, merged.run.reason]).toEqual(["blocked", "part 2/2: credentials"]);
  });

  test("a run is done when its last part is", () => {
    const inS = (p50_s: number) => (made: StatusDocument) => {
      made.extraction.eta = { p10_s: p50_s / 2, p50_s, p90_s: p50_s * 2, finish_at: null, reason: "upload" };
    };
    const merged = mergeParts([part(1, inS(100)), part(2, inS(3_600))], amounts);
    expect(merged.extraction.eta).toMatchObject({ p10_s: 1_800, p50_s: 3_600, p90_s: 7_200 });
    expect(merged.extraction.eta.reason).toBe("part 2/2: upload");
    expect(merged.extraction.eta_hours).toBe(1);
    const silent = lost(part(1, inS(100)), "gone");
    expect(mergeParts([silent, part(2, inS(3_600))], amounts).extraction.eta).toMatchObject({
      p50_s: null,
      reason: "part 1/2 is lost",
    });
  });

  test("a part of which there is no word is missing, for as long as there is something to do", () => {
    const done = part(1, (made) => {
      Object.assign(made.run, {
        state: "done",
        exit_code: 0,
        resume_command:
          "forebay resume s3://b/n --model DIR --part 1/2 --spool '/my '\\''1' --run-dir /r1 --threads 2",
      });
    });
    const half = mergeParts([done], amounts);
    expect(half.run).toMatchObject({
      state: "stopped",
      reason: "nobody works on part 2/2",
      action: "forebay resume s3://b/n --model DIR --part 2/2 --threads 2",
      exit_code: null,
    });
    expect(mergeParts([done], { committed: counts(1), total: counts(1) }).run.state).toBe("done");
    const running = mergeParts([part(1)], amounts);
    expect(running.run.state).toBe("running");
    expect(running.alerts.map(({ text }) => text)).toContain("nobody works on part 2/2");
  });

  test("parts of an earlier division are history, unless one of them still goes on", () => {
    const at = (time: string, state: StatusDocument["run"]["state"]) =>
      document((made) => {
        made.generated_at = time;
        made.run.state = state;
      });
    const whole = at("2026-01-01T10:00:00.000Z", "stopped");
    expect(presentParts([whole, part(1), part(2)]).map(({ run }) => run.part.count)).toEqual([2, 2]);
    const alive = at("2026-01-01T10:00:00.000Z", "running");
    expect(presentParts([alive, part(1)])).toHaveLength(2);
  });

  test("the table names every part, and hostile text in it is inert", () => {
    const text = statusTable(
      mergeParts([part(1), part(2, hostile)], null),
      [part(1), part(2, hostile)],
      "the store",
    ).join("\n");
    expect(text).toContain("1/2");
    expect(text).toContain("2/2");
    expect(text).not.toContain("\u001b");
    expect(text).not.toContain("\u202e");
  });
});
