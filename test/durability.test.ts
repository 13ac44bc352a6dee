import { dirname } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { mulberry32 } from "./support/chaos-proxy.ts";
import { runArgs, writeRows } from "./support/kills.ts";
import { Machine } from "./support/program.ts";
import { type Call, readCalls, runTraced } from "./support/strace.ts";

let machine: Machine;
beforeAll(() => {
  machine = new Machine();
  writeRows(machine, 18, mulberry32(2));
});
afterAll(() => machine?.remove());

test("in a directory store a name is durable, with its bytes, before the next step relies on it", async () => {
  const address = `file:${machine.path("store")}/run`;
  const output = machine.path("calls");
  const calls = ["link", "linkat", "fsync", "mkdir", "unlink", "unlinkat"];
  const args = runArgs({ machine, address, endpoint: null, rows: 18, packBytes: "48KiB" });
  const ended = await runTraced(machine, args, ["--seccomp-bpf", "-e", `trace=${calls.join(",")}`], output);
  expect(ended.code, ended.stderr).toBe(0);
  const store = machine.path("store/run");
  // What the probe tries with is thrown away, and partly meant to fail.
  const isKept = (name: string) => name.startsWith(`${store}/`) && !name.startsWith(`${store}/probe`);
  const published: string[] = [];
  for (const calls of byThread(readCalls(output)).values()) {
    calls.forEach((call, i) => {
      if (call.name !== "link" || !isKept(path(call, 1)!)) return;
      const [temporary, name] = [path(call, 0)!, path(call, 1)!];
      published.push(name.slice(store.length + 1));
      const before = calls.slice(0, i);
      expect(isSynced(before, temporary), `the bytes of ${name} before it is named`).toBe(true);
      // Up to the next thing that would be lost if the name were not there after a power cut.
      const after = calls.slice(i + 1);
      const next = after.findIndex((later) => isStep(later, temporary));
      const between = after.slice(0, next === -1 ? after.length : next);
      expect(isSynced(between, dirname(name)), `${dirname(name)} after ${name} is in it`).toBe(true);
    });
    calls.forEach((call, i) => {
      if (call.name !== "mkdir" || !isKept(path(call, 0)!)) return;
      const made = path(call, 0)!;
      const used = calls.findIndex(
        (later, j) => j > i && later.name === "link" && path(later, 1)!.startsWith(`${made}/`),
      );
      const between = calls.slice(i, used === -1 ? calls.length : used);
      expect(isSynced(between, dirname(made)), `${dirname(made)} after ${made} is in it`).toBe(true);
    });
  }
  expect(published.filter((name) => name.startsWith("packs/")).length).toBe(3);
  expect(published).toContain("run.json");
});

function byThread(calls: Call[]): Map<number, Call[]> {
  const groups = new Map<number, Call[]>();
  for (const call of calls) groups.set(call.thread, [...(groups.get(call.thread) ?? []), call]);
  return groups;
}

/** Another name is published, or the spool's file is given up. */
function isStep(call: Call, temporary: string): boolean {
  if (call.name === "link") return true;
  return call.name.startsWith("unlink") && path(call, 0) !== temporary;
}

function isSynced(calls: Call[], file: string): boolean {
  return calls.some(({ name, args }) => name === "fsync" && args.includes(`<${file}>`));
}

/** The nth quoted path among a call's arguments. */
function path({ args }: Call, n: number): string | undefined {
  return [...args.matchAll(/"([^"]*)"/g)][n]?.[1];
}
