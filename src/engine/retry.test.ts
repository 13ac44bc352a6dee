import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  blamedRows,
  nextCulprits,
  nextStep,
  type RetryFacts,
  type Trial,
  type TrialFailure,
  wasTooMuch,
} from "./retry.ts";

const row = (id: number, tokens = 10) => ({ row: id, tokens });
const fails = (id: number, more: Partial<TrialFailure> = {}): TrialFailure => ({
  row: id,
  kind: "nonfinite",
  errno: null,
  reason: "states are not finite",
  named: true,
  ...more,
});
const trial = (more: Partial<Trial>): Trial => ({
  engine: "e0",
  life: 1,
  livesStarted: 2,
  rows: [1, 2],
  alone: false,
  proven: false,
  passed: [],
  failures: [],
  ...more,
});
const facts = (more: Partial<RetryFacts>): RetryFacts => ({
  rows: [row(1), row(2)],
  good: new Set(),
  skipped: new Set(),
  trials: [],
  discredited: new Set(),
  skipsLeft: 10,
  hasKnownGood: true,
  ...more,
});
const namedOnce = trial({ passed: [2], failures: [fails(1)] });
const died = (rows: number[], more: Partial<Trial> = {}) =>
  trial({
    rows,
    failures: rows.map((id) => fails(id, { kind: "crash", named: false, reason: "it died" })),
    ...more,
  });

describe("a row that the engine failed by name", () => {
  test("goes, alone, to another living engine first", () => {
    const step = nextStep(facts({ good: new Set([2]), trials: [namedOnce] }));
    expect(step).toMatchObject({ kind: "try", groups: [[1]], where: { kind: "other", not: ["e0"] } });
  });

  test("then to a fresh engine, one that was started after it first failed, with a good row before it", () => {
    const second = trial({ engine: "e1", life: 2, rows: [1], failures: [fails(1)], alone: true });
    const step = nextStep(facts({ good: new Set([2]), trials: [namedOnce, second] }));
    expect(step).toMatchObject({ groups: [[1]], where: { kind: "fresh", afterLife: 2, notLives: [1, 2] } });
    expect(step.kind === "try" && step.probed.has(1)).toBe(true);
  });

  test("is not skipped after one fresh engine, nor after two trials in the same one, nor unproven", () => {
    const once = trial({ life: 3, rows: [1], failures: [fails(1)], alone: true, proven: true });
    for (const trials of [
      [namedOnce, once],
      [namedOnce, once, once],
      [namedOnce, once, { ...once, life: 4, proven: false }],
      [namedOnce, { ...once, life: 1 }, { ...once, life: 2 }],
    ]) {
      expect(nextStep(facts({ good: new Set([2]), trials })).kind).toBe("try");
    }
  });

  test("is skipped after two fresh engines failed it, a good row having passed between", () => {
    const once = trial({ life: 3, rows: [1], failures: [fails(1)], alone: true, proven: true });
    const trials = [namedOnce, once, { ...once, life: 4 }];
    expect(nextStep(facts({ good: new Set([2]), trials }))).toEqual({
      kind: "skip",
      rows: [{ row: 1, reason: "nonfinite: states are not finite" }],
    });
    expect(nextStep(facts({ good: new Set([2]), skipped: new Set([1]), trials }))).toEqual({
      kind: "finish",
    });
  });

  test("is not skipped on the word of an engine that was stopped as sick", () => {
    const once = trial({ engine: "e1", life: 3, rows: [1], failures: [fails(1)], alone: true, proven: true });
    const trials = [namedOnce, once, { ...once, life: 4 }];
    const step = nextStep(facts({ good: new Set([2]), trials, discredited: new Set(["e1"]) }));
    expect(step).toMatchObject({ kind: "try", where: { kind: "other", not: ["e0"] } });
  });

  test("stops the run where its skip would be one too many", () => {
    const once = trial({ life: 3, rows: [1], failures: [fails(1)], alone: true, proven: true });
    const trials = [namedOnce, once, { ...once, life: 4 }];
    const step = nextStep(facts({ good: new Set([2]), trials, skipsLeft: 0 }));
    expect(step).toMatchObject({ kind: "stop", cause: "too-many-skips" });
  });

  test("waits for a good row where there is none yet to prove an engine with", () => {
    const second = trial({ engine: "e1", life: 2, rows: [1], failures: [fails(1)], alone: true });
    const trials = [trial({ rows: [1], failures: [fails(1)] }), second];
    const step = nextStep(facts({ rows: [row(1)], trials, hasKnownGood: false }));
    expect(step.kind).toBe("wait-for-good");
  });
});

describe("rows that failed in company", () => {
  test("go together once more, alone in another engine", () => {
    const step = nextStep(facts({ trials: [died([1, 2])] }));
    expect(step).toMatchObject({ kind: "try", groups: [[1, 2]], where: { kind: "other", not: ["e0"] } });
  });

  test("and then one by one, in a fresh engine", () => {
    const trials = [died([1, 2]), died([1, 2], { life: 2, engine: "e1", alone: true })];
    expect(nextStep(facts({ trials }))).toMatchObject({ groups: [[1], [2]], where: { kind: "fresh" } });
  });

  test("those that passed before go together, and the one to blame goes last", () => {
    const trials = [
      died([1, 2, 3, 4]),
      died([1, 2, 3, 4], { life: 2, alone: true }),
      trial({ life: 3, rows: [1], alone: true, passed: [1] }),
      died([2], { life: 3, alone: true, passed: [] }),
    ];
    const step = nextStep(facts({ rows: [1, 2, 3, 4].map((id) => row(id)), trials }));
    expect(step).toMatchObject({ kind: "try", groups: [[1], [3], [4], [2]] });
  });

  test("where memory ran out, go in halves of like tokens", () => {
    const oom = died([1, 2, 3]);
    const trials = [{ ...oom, failures: oom.failures.map((f) => ({ ...f, kind: "oom" as const })) }];
    const step = nextStep(facts({ rows: [row(1, 10), row(2, 10), row(3, 20)], trials }));
    expect(step).toMatchObject({ groups: [[1, 2], [3]] });
  });
});

describe("a full disk", () => {
  test.each(["ENOSPC", "EDQUOT"])("(%s) is nobody's fault", (errno) => {
    const trials = [trial({ failures: [fails(1, { kind: "io", errno, reason: "no space" })] })];
    expect(nextStep(facts({ trials }))).toEqual({ kind: "no-space", reason: "no space" });
    expect(blamedRows(trials[0]!)).toEqual([]);
  });

  test("is not an ill one, which stops the run when it stays so", () => {
    const bad = trial({ failures: [fails(1, { kind: "io", errno: "EROFS", reason: "read-only" })] });
    expect(nextStep(facts({ trials: [bad] })).kind).toBe("try");
    expect(nextStep(facts({ trials: [bad, bad, bad] }))).toMatchObject({ kind: "stop", cause: "disk" });
    // A file that an engine reads, as a server's, has no errno: it is the engine's trouble, however often.
    const servers = trial({ failures: [fails(1, { kind: "io", reason: "its file never came" })] });
    expect(nextStep(facts({ trials: [servers, servers, servers] })).kind).toBe("try");
    expect(blamedRows(servers)).toEqual([1]);
    expect(blamedRows(bad)).toEqual([]);
  });
});

test("an engine's culprits in a row grow with what it alone is to blame for, and end with a row that passes", () => {
  let culprits = nextCulprits(new Set(), trial({ failures: [fails(1), fails(2)] }), false);
  expect([...culprits]).toEqual([1, 2]);
  culprits = nextCulprits(culprits, died([3, 4]), true);
  expect([...culprits]).toEqual([1, 2]);
  expect([...nextCulprits(culprits, died([3], { alone: true }), true)]).toEqual([1, 2, 3]);
  expect(nextCulprits(culprits, namedOnce, false).size).toBe(0);
  const full = trial({ failures: [fails(1, { kind: "oom" }), fails(2, { kind: "oom" })] });
  expect(nextCulprits(new Set(), full, false).size).toBe(0);
});

test.each([
  ["a request that did not fit as a whole", { rows: [1, 2] }, false, true],
  ["one row among other batches", { rows: [1] }, false, true],
  ["one row that had the engine for itself", { rows: [1], alone: true }, false, false],
  ["rows that a living engine found too large one by one", { rows: [1, 2] }, true, false],
])("memory that ran out with %s: smaller forwards help %s", (_, of, named, helps) => {
  const failures = of.rows.map((id) => fails(id, { kind: "oom", named }));
  expect(wasTooMuch(trial({ ...of, failures }))).toBe(helps);
});

/** Carries the steps out as the fleet does, in a world where `verdict` decides what becomes of a request. */
function play(
  rows: number[],
  engines: number,
  verdict: (
    asked: readonly number[],
    engine: number,
    alone: boolean,
  ) => { named: number[]; dies: boolean; oom?: boolean },
) {
  let lives = engines;
  const lifeOf = Array.from({ length: engines }, (_, i) => i + 1);
  const trials: Trial[] = [];
  const skipped = new Set<number>();
  let good = new Set<number>();
  const ask = (engine: number, asked: readonly number[], alone: boolean, proven: boolean): boolean => {
    const { named, dies, oom } = verdict(asked, engine, alone);
    const failed = dies ? asked : asked.filter((id) => named.includes(id));
    const kind = oom ? "oom" : dies ? "crash" : "nonfinite";
    const passed = asked.filter((id) => !failed.includes(id));
    trials.push({
      engine: `e${engine}`,
      life: lifeOf[engine]!,
      livesStarted: lives,
      rows: asked,
      alone,
      proven,
      passed,
      failures: failed.map((id) => fails(id, { kind, named: !dies })),
    });
    for (const id of passed) good.add(id);
    if (dies) {
      good = new Set();
      lives += 1;
      lifeOf[engine] = lives;
    }
    return failed.length === 0;
  };
  ask(0, rows, false, false);
  for (let steps = 0; ; steps += 1) {
    if (steps > 1000) throw new Error("it does not end");
    const step = nextStep({
      rows: rows.map((id) => row(id)),
      good,
      skipped,
      trials,
      discredited: new Set(),
      skipsLeft: 1000,
      hasKnownGood: true,
    });
    if (step.kind === "finish" || step.kind === "stop") return { step, skipped, good, trials };
    if (step.kind === "skip") {
      for (const { row: id } of step.rows) skipped.add(id);
      continue;
    }
    if (step.kind !== "try") throw new Error(`unexpected ${step.kind}`);
    let engine = 0;
    if (step.where.kind === "other") {
      const { not } = step.where;
      const other = lifeOf.findIndex((_, i) => !not.includes(`e${i}`));
      engine = Math.max(other, 0);
      if (other < 0) lifeOf[0] = lives += 1;
    } else if (step.where.kind === "fresh") {
      const { afterLife, notLives } = step.where;
      const fresh = lifeOf.findIndex((life) => life > afterLife && !notLives.includes(life));
      engine = Math.max(fresh, 0);
      if (fresh < 0) lifeOf[0] = lives += 1;
    }
    let proven = false;
    for (const group of step.groups) {
      if (group.some((id) => step.probed.has(id))) proven = true;
      if (!ask(engine, group, true, proven)) break;
      proven = true;
    }
  }
}

const batch = fc.uniqueArray(fc.nat(50), { minLength: 1, maxLength: 12 });

test("in an honest world exactly the poisonous rows are skipped, and all others have states", () => {
  const poison = fc.constantFrom("none", "named", "crash", "oom");
  fc.assert(
    fc.property(
      batch,
      fc.array(poison, { minLength: 51, maxLength: 51 }),
      fc.integer({ min: 1, max: 4 }),
      (rows, kinds, n) => {
        const { step, skipped, good } = play(rows, n, (asked) => ({
          named: asked.filter((id) => kinds[id] === "named"),
          dies: asked.some((id) => kinds[id] === "crash" || kinds[id] === "oom"),
          oom: asked.some((id) => kinds[id] === "oom"),
        }));
        expect(step.kind).toBe("finish");
        const bad = rows.filter((id) => kinds[id] !== "none");
        expect([...skipped].sort()).toEqual(bad.sort());
        expect(rows.every((id) => good.has(id) !== skipped.has(id))).toBe(true);
      },
    ),
  );
});

test("whatever engines do, it ends, and no row is skipped that failed in one life only or without a good row between", () => {
  const whims = fc.infiniteStream(fc.tuple(fc.boolean(), fc.nat(4), fc.nat()));
  fc.assert(
    fc.property(batch, whims, fc.integer({ min: 1, max: 4 }), (rows, stream, n) => {
      const { skipped, trials } = play(rows, n, (asked) => {
        const [oom, whim, pick] = stream.next().value!;
        return { named: whim < 3 ? asked.filter((id) => (id + pick) % 3 === 0) : [], dies: whim === 3, oom };
      });
      for (const id of skipped) {
        const blaming = trials.filter((t) => blamedRows(t).includes(id));
        const first = trials.find((t) => t.failures.some((f) => f.row === id))!;
        const fresh = blaming.filter((t) => t.life > first.livesStarted);
        expect(new Set(fresh.map((t) => t.life)).size).toBeGreaterThanOrEqual(2);
        expect(fresh.some((t) => t.proven)).toBe(true);
      }
      expect(trials.length).toBeLessThan(10 + 12 * rows.length);
    }),
  );
});
