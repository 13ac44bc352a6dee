import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { RunError } from "../base/errors.ts";
import { eventFile } from "./event-log.ts";
import { isRefusedAddress, pingHeartbeat } from "./heartbeat-url.ts";
import { runOnExit } from "./on-exit.ts";
import { identifyProcess, isProcessAlive, signalProcess } from "./process-identity.ts";
import {
  FILES,
  lookAtRunDirectory,
  makeRunDirectory,
  runDirectoryPath,
  type SupervisorRecord,
  writeRecord,
} from "./run-directory.ts";

const temporary = () => mkdtempSync(join(tmpdir(), "forebay-control-"));
const one = { index: 1, count: 1 };

function supervisorOf(pid: number): SupervisorRecord {
  return {
    process: identifyProcess(pid),
    startedAt: "2026-01-01T00:00:00.000Z",
    address: "file:/a/b",
    part: one,
    socket: "s",
    token: "t",
    pageUrl: null,
    spool: "/spool",
  };
}

test("address and part name the directory; two runs of one name do not share it", () => {
  const path = (address: string, part = one) => runDirectoryPath({ stateHome: "/state", address, part });
  expect(path("s3://bucket/prefix/name")).toMatch(/^\/state\/forebay\/name-[0-9a-f]{8}$/);
  expect(path("s3://bucket/other/name")).not.toBe(path("s3://bucket/prefix/name"));
  expect(path("s3://bucket/prefix/name", { index: 1, count: 2 })).not.toBe(path("s3://bucket/prefix/name"));
  expect(path("file:name")).toMatch(/^\/state\/forebay\/name-[0-9a-f]{8}$/);
});

test("the directory and its records are for their owner only", () => {
  const directory = join(temporary(), "deep", "run");
  makeRunDirectory(directory);
  writeRecord(join(directory, FILES.supervisor), supervisorOf(process.pid));
  expect(statSync(directory).mode & 0o777).toBe(0o700);
  expect(statSync(join(directory, FILES.supervisor)).mode & 0o777).toBe(0o600);
});

test("a run directory that cannot be made says where and what to do", () => {
  const file = join(temporary(), "file");
  writeFileSync(file, "");
  expect(() => makeRunDirectory(join(file, "run"))).toThrow(RunError);
});

test("a supervisor is alive only as the very process that wrote the record", async () => {
  const directory = temporary();
  const child = spawn("sleep", ["60"]);
  await once(child, "spawn");
  const record = supervisorOf(child.pid!);
  writeRecord(join(directory, FILES.supervisor), record);
  expect(lookAtRunDirectory(directory).supervisor?.alive).toBe(true);
  // Another process with the same pid would have started at another tick, or in another boot.
  expect(isProcessAlive({ ...record.process, startTicks: record.process.startTicks - 1 })).toBe(false);
  expect(isProcessAlive({ ...record.process, bootId: "another boot" })).toBe(false);
  expect(signalProcess({ ...record.process, startTicks: 1 }, "SIGKILL")).toBe(false);
  expect(signalProcess(record.process, "SIGKILL")).toBe(true);
  await once(child, "exit");
  expect(lookAtRunDirectory(directory).supervisor?.alive).toBe(false);
});

test("a process that ended and was not waited for counts as gone", async () => {
  // The shell starts a child, tells its pid, and becomes a program that never waits, before the child ends.
  const shell = spawn("/bin/sh", ["-c", "sleep 0.3 & echo $!; exec sleep 60"], {
    stdio: ["ignore", "pipe", "ignore"],
  });
  try {
    const [line] = (await once(shell.stdout, "data")) as [Buffer];
    const pid = Number(line.toString());
    for (let look = 0; look < 200; look += 1) {
      if (/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, "utf8"))) break;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
    expect(readFileSync(`/proc/${pid}/stat`, "utf8")).toMatch(/\) Z /);
    expect(() => identifyProcess(pid)).toThrow();
  } finally {
    shell.kill("SIGKILL");
  }
});

test("cut, foreign and missing records are nothing, not failures", () => {
  const directory = temporary();
  writeFileSync(join(directory, FILES.supervisor), '{"process": {"pid": 1');
  writeFileSync(join(directory, FILES.keeper), '{"other": true}');
  expect(lookAtRunDirectory(directory)).toMatchObject({
    exists: true,
    supervisor: null,
    keeper: null,
    launch: null,
  });
  expect(lookAtRunDirectory(join(directory, "none"))).toMatchObject({ exists: false });
});

test("the event log is lines of JSON, rotated before it grows without bound", () => {
  const path = join(temporary(), "events.log");
  const dropped: string[] = [];
  const sink = eventFile(path, (code) => dropped.push(code));
  const event = { at: "t", level: "info" as const, event: "x", text: "y".repeat(1 << 20) };
  for (let i = 0; i < 40; i += 1) sink(event);
  expect(statSync(path).size).toBeLessThan(17 * 2 ** 20);
  expect(statSync(`${path}.1`).size).toBeGreaterThan(2 ** 20);
  expect(JSON.parse(readFileSync(path, "utf8").split("\n")[0]!)).toMatchObject({ event: "x" });
  expect(dropped).toEqual([]);
});

test("an event log that cannot be written drops its lines and says so", () => {
  const path = join(temporary(), "events.log");
  mkdirSync(path);
  const dropped: string[] = [];
  eventFile(path, (code) => dropped.push(code))({ at: "t", level: "info", event: "x" });
  expect(dropped).toEqual(["EISDIR"]);
});

test("--on-exit gets the exit code, and its own failure is only reported", async () => {
  const directory = temporary();
  const run = (command: string) =>
    runOnExit({ command, exitCode: 9, env: { PATH: process.env.PATH }, directory });
  expect(await run('echo "$FOREBAY_EXIT_CODE" > code')).toBe(0);
  expect(readFileSync(join(directory, "code"), "utf8")).toBe("9\n");
  expect(await run("exit 3")).toBe(3);
});

test("the heartbeat URL is asked, redirects count as failures, and metadata addresses are refused unasked", async () => {
  const asked: string[] = [];
  const server = createServer((request, response) => {
    asked.push(request.url!);
    if (request.url === "/moved") response.writeHead(302, { location: "http://169.254.169.254/" });
    response.end();
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as AddressInfo;
  try {
    await pingHeartbeat(`http://127.0.0.1:${port}/ping`);
    await pingHeartbeat(`http://localhost:${port}/by-name`).catch(() => {});
    await expect(pingHeartbeat(`http://127.0.0.1:${port}/moved`)).rejects.toThrow("302");
    expect(asked).toContain("/ping");
    expect(asked).toContain("/moved");
  } finally {
    server.close();
  }
  for (const host of ["169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]", "[fd00:ec2::254]"]) {
    await expect(pingHeartbeat(`http://${host}/`)).rejects.toThrow(/refused/);
  }
  expect(isRefusedAddress("93.184.216.34")).toBe(false);
});
