import { mkdtempSync, rmSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { crc32c } from "../base/checksum.ts";
import { statusKey } from "../store/keys.ts";
import { openStore } from "../store/open.ts";
import type { OpenedStore } from "../store/store.ts";
import { type ClaimOptions, claimPart } from "./lease.ts";

const part = { index: 2, count: 4 };
let directory: string;
let store: OpenedStore;
beforeEach(async () => {
  directory = mkdtempSync(join(tmpdir(), "forebay-lease-"));
  store = await openStore({ kind: "directory", directory, name: "run" });
});
afterEach(() => {
  store.close();
  rmSync(directory, { recursive: true });
});

test("a part without a heartbeat is free, and another part's heartbeat does not matter", async () => {
  await beat({ host: "other", pid: 1, state: "running" }, { index: 1, count: 4 });
  await claimPart(options());
});

test.each(["stopped", "done", "failed"])("a part whose last heartbeat says %s is free", async (state) => {
  await beat({ host: "other", pid: 1, state });
  await claimPart(options());
});

test("a part whose process on this host is dead is free at once; a living one holds it with exit 5", async () => {
  await beat({ host: hostname(), pid: 77, state: "running" });
  await claimPart(options({ pidAlive: () => false }));
  await expect(claimPart(options({ pidAlive: (pid) => pid === 77 }))).rejects.toMatchObject({
    exit: 5,
    hint: expect.stringContaining("--take-over"),
  });
});

test("a part of another host is refused as soon as its heartbeat changes", async () => {
  await beat({ host: "other", pid: 1, state: "running" });
  const claimed = claimPart(
    options({ onWaiting: () => void beat({ host: "other", pid: 1, state: "running" }) }),
  );
  await expect(claimed).rejects.toMatchObject({ exit: 5, message: expect.stringContaining("other, pid 1") });
});

test("a part of another host whose heartbeat stands still for three intervals is taken over", async () => {
  await beat({ host: "other", pid: 1, state: "running" });
  let waitedS = 0;
  await claimPart(options({ onWaiting: (seconds) => (waitedS = seconds) }));
  expect(waitedS).toBeCloseTo(0.09);
});

test("--take-over does not wait", async () => {
  await beat({ host: "other", pid: 1, state: "running" });
  await claimPart(options({ takeOver: true, onWaiting: () => expect.unreachable() }));
});

test("a heartbeat that cannot be read holds nobody", async () => {
  const body = Buffer.from("{ not json");
  await store.put(statusKey(part), body, { crc32c: crc32c(body), createOnly: false });
  await claimPart(options());
});

let beats = 0;
async function beat(run: { host: string; pid: number; state: string }, of = part): Promise<void> {
  const at = new Date(1_000 * beats++).toISOString();
  const body = Buffer.from(JSON.stringify({ heartbeat_at: at, heartbeat_interval_s: 0.03, run }));
  await store.put(statusKey(of), body, { crc32c: crc32c(body), createOnly: false });
}

function options(change: Partial<ClaimOptions> = {}): ClaimOptions {
  return { store, part, host: hostname(), pidAlive: () => true, takeOver: false, ...change };
}
