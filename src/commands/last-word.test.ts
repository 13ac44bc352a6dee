import { expect, test } from "vitest";
import type { StatusDocument } from "../run/status.ts";
import { StatusBoard } from "../run/status-board.ts";
import { lastWordOf, newest } from "./last-word.ts";
import type { Standing } from "./standing.ts";

const START = Date.UTC(2026, 0, 1, 12, 0, 0);

/** What process `pid` of part `index` on `host` said at second `at`. */
function said(at: number, { index = 1, host = "box", pid = 7 } = {}): StatusDocument {
  const board = new StatusBoard(
    {
      appVersion: "0.1.0",
      address: "s3://bucket/prefix/name",
      name: "name",
      part: { index, count: 2 },
      host,
      pid,
      runDirectory: "/state/name",
      spoolDirectory: "/spool",
      spoolBudgetBytes: 2 ** 30,
      resumeCommand: "forebay resume s3://bucket/prefix/name",
      settings: {},
      heartbeatIntervalS: 60,
      price: null,
    },
    { nowMs: () => 0, wallMs: () => START + at * 1000 },
  );
  const document = board.snapshot();
  document.run.state = "running";
  return document;
}

/** A run directory whose supervisor is gone, and said this last. */
function dead(status: StatusDocument): Standing {
  const look = {
    path: "/state/name",
    exists: true,
    supervisor: null,
    keeper: null,
    launch: null,
  };
  return { look, status, live: false };
}

/** The store's copy of it, seen `silentS` later by the store's clock. */
function heartbeat(document: StatusDocument, silentS: number) {
  const lastModifiedMs = Date.parse(document.generated_at);
  return { document, lastModifiedMs, serverDateMs: lastModifiedMs + silentS * 1000 };
}

test.each([
  ["older than the run directory's document", 9],
  ["as old", 10],
  ["newer, because a change of state was told at once", 11],
])("a process dead on this machine is lost at once, its heartbeat being %s", (_, at) => {
  const { run, generated_at } = newest(heartbeat(said(at), 1), lastWordOf(dead(said(10))));
  expect(run).toMatchObject({ state: "lost", reason: "its process 7 on this machine is gone" });
  expect(Date.parse(generated_at)).toBe(START + Math.max(at, 10) * 1000);
});

test("a part taken over elsewhere since lives, and another part is judged by its own heartbeat", () => {
  const here = lastWordOf(dead(said(10)));
  expect(newest(heartbeat(said(11, { host: "other" }), 1), here).run.state).toBe("running");
  expect(newest(heartbeat(said(11, { pid: 8 }), 1), here).run.state).toBe("running");
  expect(newest(heartbeat(said(5, { index: 2 }), 1), here).run.state).toBe("running");
  expect(newest(heartbeat(said(5, { index: 2 }), 181), here).run.reason).toBe(
    "no heartbeat for 181 s from box",
  );
});

test("an orderly end told only to the store stays an end", () => {
  const done = said(11);
  done.run.state = "done";
  expect(newest(heartbeat(done, 500), lastWordOf(dead(said(10)))).run.state).toBe("done");
});
