/// <reference lib="dom" />
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import type { StatusDocument } from "../src/run/status.ts";
import { launchBrowser, openRunPage } from "./support/browser.ts";
import { type FaultyRun, faultyRun, sickEngines } from "./support/faults.ts";
import { runArgs } from "./support/kills.ts";
import type { Running } from "./support/program.ts";
import { freePorts } from "./support/servers.ts";

/** What is said while a run is starting: what it is at, and never rates, a stall or a limit that are not there. */

let browser: Browser;
let run: FaultyRun;

beforeAll(async () => {
  browser = await launchBrowser();
}, 120_000);
afterAll(async () => {
  await browser?.close();
});
afterEach(async () => {
  await Promise.all(browser.contexts().map((context) => context.close()));
  await run?.machine.remove();
});

test("an engine that takes long to load, and then long over its first batch, is waited for in words", async () => {
  run = faultyRun("slow-start", null);
  const [port] = await freePorts(1);
  const args = runArgs(run).filter((word) => word !== "--no-gate");
  args.splice(args.indexOf("--port"), 2, "--port", String(port));
  args.splice(args.indexOf("--progress"), 2, "--progress", "plain");
  const running = run.machine.start([...args, ...sickEngines({ loadMs: 6_000, delayMs: 3_000 })]);
  const url = `http://127.0.0.1:${port}`;
  await untilUp(url, running);
  const { page, complaints } = await openRunPage(browser, url);

  const starts: StatusDocument[] = [];
  const shown = new Set<string>();
  for (;;) {
    const text = (await page.locator(".answer.state .more").textContent()) ?? "";
    // Asked after the text was read: what a page says of a run that has just begun to work is another matter.
    const document = await statusOf(url);
    if (document.run.state !== "starting") break;
    starts.push(document);
    shown.add(text);
    await page.waitForTimeout(100);
  }
  const phases = starts.map(({ run: { phase } }) => phase).filter((phase, i, all) => phase !== all[i - 1]);
  expect(phases.slice(phases.indexOf("loading the model"))).toEqual([
    "loading the model",
    "checking the engine's states",
    "computing the first batches",
  ]);
  for (const { run: said, extraction, bottleneck } of starts) {
    expect(said.reason).toContain(said.phase);
    expect([extraction.tokens.rate, extraction.eta.p50_s, bottleneck.stage]).toEqual([0, null, null]);
  }
  const reasons = starts.map(({ run: { reason } }) => reason);
  expect(reasons).toContain("loading the model: onnx-0 is loading");
  expect(reasons.at(-1)).toMatch(/^computing the first batches: \d+ in the engines, [\d,]+ tokens$/);
  expect([...shown].join("\n")).toMatch(/Loading the model: onnx-0 is loading\. For \d+ s\./);
  expect([...shown].join("\n")).toMatch(/Computing the first batches: \d+ in the engines/);
  expect([...shown].join("\n")).not.toMatch(/stalled|All is well/i);

  running.child.kill("SIGTERM");
  const { stderr, code } = await running.ended;
  expect(code, stderr).toBe(143);
  const lines = stderr.split("\n").filter((line) => line.includes(" starting: "));
  expect(lines.join("\n")).toMatch(/starting: loading the model: onnx-0 is (?:starting|loading)/);
  expect(lines.join("\n")).toMatch(/starting: checking the engine's states/);
  expect(lines.join("\n")).toMatch(/starting: computing the first batches: /);
  for (const line of lines) expect(line).not.toMatch(/tokens\/s|stalled|MB\/s/);
  expect(complaints).toEqual([]);
});

async function untilUp(url: string, running: Running): Promise<void> {
  for (;;) {
    const answer = await fetch(`${url}/healthz`).catch(() => null);
    if (answer?.ok) return;
    if (running.child.exitCode !== null) throw new Error((await running.ended).stderr);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

async function statusOf(url: string): Promise<StatusDocument> {
  return (await fetch(`${url}/api/status`)).json();
}
