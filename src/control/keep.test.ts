import { mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, onTestFinished, test } from "vitest";
import { silentLog } from "../base/log.ts";
import { serveControl } from "./channel.ts";
import { waitForFirstCommit } from "./detach.ts";
import { keepRunning } from "./keep.ts";
import { identifyProcess } from "./process-identity.ts";
import { FRUITLESS_MAX, type SupervisorExit } from "./restart-decision.ts";
import { FILES, KeeperRecord, type LaunchRecord, readRecord, writeRecord } from "./run-directory.ts";

const launch: LaunchRecord = {
  generation: 1,
  verb: "run",
  address: "file:/a/b",
  directory: "/",
  settings: {},
  onExit: null,
};

function newDirectory(): string {
  const directory = mkdtempSync(join(tmpdir(), "forebay-keep-"));
  writeRecord(join(directory, FILES.launch), launch);
  return directory;
}

function writeStatus(
  directory: string,
  fields: { committedAt: string | null; state?: string; at?: string },
): void {
  const { committedAt, state = "running", at = new Date().toISOString() } = fields;
  const document = {
    generated_at: at,
    run: {
      id: "1a2b",
      state,
      phase: "extracting",
      reason: "why",
      action: "do",
      page_url: null,
      started_at: at,
    },
    extraction: { last_commit_at: committedAt, total_processed: 0, total: 1 },
  };
  writeFileSync(join(directory, FILES.status), JSON.stringify(document));
}

/** Runs the keeper over supervisors that end as told; `during` acts while each runs. */
async function keep(
  directory: string,
  exits: SupervisorExit[],
  during: (nth: number) => void = () => {},
  signal = new AbortController().signal,
) {
  const started: LaunchRecord[] = [];
  const code = await keepRunning({
    directory,
    async supervise(record) {
      started.push(record);
      during(started.length);
      return exits[started.length - 1] ?? { code: 0, signal: null };
    },
    signal,
    log: silentLog,
    // No wait between restarts.
    random: () => 0,
    nowMs: Date.now,
  });
  return { code, started, record: readRecord(join(directory, FILES.keeper), KeeperRecord)! };
}

const killed = { code: null, signal: "SIGKILL" };

test("a supervisor that is killed is started again, until it is done", async () => {
  const { code, started, record } = await keep(newDirectory(), [killed, killed, { code: 0, signal: null }]);
  expect([code, started.length, record.restarts, record.state]).toEqual([0, 3, 2, "ended"]);
});

test("an exit that needs a person ends the keeper with that exit code and the reason", async () => {
  const { code, started, record } = await keep(newDirectory(), [{ code: 4, signal: null }]);
  expect([code, started.length, record.state]).toEqual([4, 1, "ended"]);
  expect(record.decision).toContain("person");
});

test("one that never commits is given up; one that commits each time is not", async () => {
  const always = Array.from({ length: FRUITLESS_MAX * 2 }, () => killed);
  const without = await keep(newDirectory(), always);
  expect([without.code, without.started.length]).toEqual([137, FRUITLESS_MAX]);
  const directory = newDirectory();
  const commit = () => writeStatus(directory, { committedAt: new Date(Date.now() + 1).toISOString() });
  const withCommits = await keep(directory, always, commit);
  expect([withCommits.code, withCommits.started.length]).toEqual([0, FRUITLESS_MAX * 2 + 1]);
});

test("new settings in launch.json are started at once after a graceful stop", async () => {
  const directory = newDirectory();
  const { code, started } = await keep(
    directory,
    [
      { code: 143, signal: null },
      { code: 0, signal: null },
    ],
    (nth) => {
      if (nth > 1) return;
      writeRecord(join(directory, FILES.launch), {
        ...launch,
        generation: 2,
        settings: { engines: { text: "4", source: "flag" } },
      });
    },
  );
  expect(code).toBe(0);
  expect(started.map(({ generation }) => generation)).toEqual([1, 2]);
  expect(started[1]!.settings.engines?.text).toBe("4");
});

test("a keeper that is asked to end starts nothing more", async () => {
  const asked = new AbortController();
  const { code, started, record } = await keep(
    newDirectory(),
    [killed, killed],
    () => asked.abort(),
    asked.signal,
  );
  expect([code, started.length, record.state]).toEqual([137, 1, "ended"]);
});

test("a detached start is over at the first commit after it, not at one of an earlier session", async () => {
  const directory = newDirectory();
  writeStatus(directory, { committedAt: "2020-01-01T00:00:00.000Z", at: "2020-01-01T00:00:00.000Z" });
  const seen: string[] = [];
  const wait = waitForFirstCommit({
    directory,
    sinceMs: Date.now() - 1,
    ownKeeper: true,
    nowMs: Date.now,
    onStatus: ({ run }) => seen.push(run.state),
  });
  const timer = setTimeout(() => writeStatus(directory, { committedAt: new Date().toISOString() }), 300);
  const outcome = await wait;
  clearTimeout(timer);
  expect(outcome.kind).toBe("working");
  expect(seen).toEqual(["running"]);
});

test("a detached start that fails returns the supervisor's exit code and the keeper's reason", async () => {
  const directory = newDirectory();
  const sinceMs = Date.now() - 1;
  await keep(directory, [{ code: 78, signal: null }]);
  const outcome = await waitForFirstCommit({
    directory,
    sinceMs,
    ownKeeper: true,
    nowMs: Date.now,
    onStatus() {},
  });
  expect(outcome).toMatchObject({ kind: "ended", exitCode: 78 });
});

test("how far a start is that is not yet accepted, its supervisor tells: the file is an earlier session's", async () => {
  const directory = newDirectory();
  const sinceMs = Date.now() - 1;
  const at = new Date().toISOString();
  writeStatus(directory, { committedAt: null, state: "done", at: "2020-01-01T00:00:00.000Z" });
  const run = { id: "", state: "starting", phase: "reading", reason: null, action: null, page_url: null };
  const control = await serveControl({
    status: () => ({
      generated_at: at,
      run: { ...run, started_at: at },
      extraction: { last_commit_at: null, total_processed: 0, total: 0 },
    }),
    set: () => ({}),
    stop: () => ({}),
  });
  onTestFinished(() => control.close());
  writeRecord(join(directory, FILES.supervisor), {
    process: identifyProcess(process.pid),
    startedAt: at,
    address: "file:x/run",
    part: { index: 1, count: 1 },
    socket: control.socket,
    token: control.token,
    pageUrl: null,
    spool: directory,
  });
  const heard: string[] = [];
  const outcome = await waitForFirstCommit({
    directory,
    sinceMs,
    ownKeeper: true,
    nowMs: Date.now,
    onStatus: (status) => {
      heard.push(status.run.phase);
      void keep(directory, [{ code: 4, signal: null }]);
    },
  });
  expect(outcome).toMatchObject({ kind: "ended", exitCode: 4, accepted: false });
  expect(new Set(heard)).toEqual(new Set(["reading"]));
});

test("a detached start that is blocked returns with what to do", async () => {
  const directory = newDirectory();
  const sinceMs = Date.now() - 1;
  writeStatus(directory, { committedAt: null, state: "blocked" });
  const outcome = await waitForFirstCommit({
    directory,
    sinceMs,
    ownKeeper: true,
    nowMs: Date.now,
    onStatus() {},
  });
  expect(outcome).toMatchObject({ kind: "blocked", status: { run: { action: "do" } } });
});

test("a keeper that never starts is noticed", async () => {
  const sinceMs = Date.now();
  const outcome = await waitForFirstCommit({
    directory: newDirectory(),
    sinceMs,
    ownKeeper: true,
    nowMs: () => sinceMs + 3_600_000,
    onStatus() {},
  });
  expect(outcome).toMatchObject({ kind: "ended", exitCode: 1 });
});
