/// <reference lib="dom" />
import { existsSync, writeFileSync } from "node:fs";
import { get } from "node:http";
import { join } from "node:path";
import { source as AXE } from "axe-core";
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { launchBrowser, type MonitorChild, openRunPage, startMonitorChild } from "./support/browser.ts";
import { DEMO, Machine } from "./support/program.ts";
import { freePorts } from "./support/servers.ts";

const GZIP_BYTES_MAX = 60 * 1024;

let browser: Browser;
let children: MonitorChild[] = [];

beforeAll(async () => {
  browser = await launchBrowser();
}, 120_000);
afterAll(async () => {
  await browser?.close();
});
afterEach(async () => {
  await Promise.all(browser.contexts().map((context) => context.close()));
  await Promise.all(children.map((child) => child.kill()));
  children = [];
});

async function monitor(options: Record<string, unknown> = {}, port?: number): Promise<MonitorChild> {
  const child = await startMonitorChild(options, port);
  children.push(child);
  return child;
}

test("the first answer fills the page: state, end, limit, advice, engines, before any tick", async () => {
  const { url } = await monitor({ tickMs: 3_600_000 });
  const { page, complaints, requested } = await openRunPage(browser, url);
  expect(await page.getByTestId("state").textContent()).toBe("Running");
  expect(await page.getByTestId("eta").textContent()).toMatch(/^\d+ h \d\d min$/);
  expect(await page.getByTestId("done-share").textContent()).toMatch(/^\d+\.\d %$/);
  expect(await page.getByTestId("verdict").textContent()).toContain("The link carries 788 MB/s");
  expect(await page.locator(".stage.limits h3").textContent()).toContain("upload");
  // Slowest first.
  const engines = await page.locator("table.engines tbody th").allTextContents();
  expect(engines.map((text) => text.split(" ")[0])).toEqual(["2", "3", "1", "0"]);
  expect(await page.title()).toMatch(/%.* · .*Running · qwen3.6-27b-chat/);
  expect(await page.locator(".plot canvas").count()).toBe(6);
  const paint = await page.evaluate(
    () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null,
  );
  console.log(`first contentful paint: ${paint?.toFixed(0)} ms`);
  expect(complaints).toEqual([]);
  expect(requested.filter((asked) => !asked.startsWith(`${url}/`))).toEqual([]);
});

test("figures move without a reload", async () => {
  const { url } = await monitor({ elapsedHours: 0.001 });
  const { page, complaints } = await openRunPage(browser, url);
  await page.evaluate(() => Object.assign(window, { sameDocument: true }));
  const samples = () => page.locator(".tally").textContent();
  const before = await samples();
  await page.waitForFunction((text) => document.querySelector(".tally")?.textContent !== text, before);
  expect(await page.evaluate(() => "sameDocument" in window)).toBe(true);
  expect(complaints).toEqual([]);
});

test("a run that knows nothing yet shows dashes, not zeros", async () => {
  const { url } = await monitor({ bare: true, historyHours: 0 });
  const { page, complaints } = await openRunPage(browser, url);
  expect(await page.getByTestId("state").textContent()).toBe("Starting");
  const answers = await page.locator(".answer .big").allTextContents();
  expect(answers).toEqual(["Starting", "–", "–"]);
  expect(await page.locator(".answers").textContent()).toContain("Measuring: 0 of 5 batches");
  expect(await page.locator("table.engines tbody").textContent()).toBe("No engine has started yet.");
  expect(complaints).toEqual([]);
});

test("old figures are dimmed, then a banner says so; both go when the run answers again", async () => {
  const child = await monitor();
  const { page } = await openRunPage(browser, child.url, { clock: true });
  const freshness = () => page.locator("main").getAttribute("data-freshness");
  expect(await freshness()).toBe("fresh");
  child.signal("SIGSTOP");
  await page.clock.fastForward(5_000);
  await page.locator('main[data-freshness="stale"]').waitFor();
  expect(await page.getByRole("alert").count()).toBe(0);
  await page.clock.fastForward(13_000);
  await page.getByRole("alert").waitFor();
  expect(await page.getByRole("alert").textContent()).toMatch(/These figures are old.*forebay status s3:/s);
  child.signal("SIGCONT");
  await page.clock.resume();
  await page.locator('main[data-freshness="fresh"]').waitFor();
  expect(await page.getByRole("alert").count()).toBe(0);
});

test("a supervisor that is killed and comes back on its port is followed without a reload", async () => {
  const first = await monitor();
  const { page, complaints } = await openRunPage(browser, first.url);
  await page.evaluate(() => Object.assign(window, { sameDocument: true }));
  const process_ = page.locator("dt", { hasText: /^process$/ }).locator("xpath=following-sibling::dd");
  expect(await process_.textContent()).toContain(String(first.pid));
  await first.kill();
  await page.locator('main[data-freshness="stale"]').waitFor();
  const second = await monitor({}, first.port);
  await page.locator("dd", { hasText: new RegExp(`^${second.pid} on`) }).waitFor();
  await page.locator('main[data-freshness="fresh"]').waitFor();
  expect(await page.evaluate(() => "sameDocument" in window)).toBe(true);
  expect(complaints).toEqual([]);
});

test("a stream that is refused, which a browser gives up for good, is asked for again", async () => {
  const child = await monitor();
  const { page } = await openRunPage(browser, child.url);
  // What a tunnel or a supervisor on its way out may answer.
  await page.route("**/api/events", (route) => route.fulfill({ status: 503, body: "{}" }), { times: 2 });
  await page.reload();
  await page.getByTestId("state").waitFor();
});

test("a real run is followed from its start over a SIGKILL and a resume to its end", async ({
  onTestFinished,
}) => {
  const machine = new Machine();
  onTestFinished(() => machine.remove());
  const rows = Array.from({ length: 2_500 }, (_, row) => {
    const ids = Array.from({ length: 40 + (row % 40) }, (_, i) => (row * 31 + i * 7) % 2_000);
    return `${JSON.stringify({ input_ids: ids })}\n`;
  });
  writeFileSync(machine.path("rows.jsonl"), rows.join(""));
  const [port] = await freePorts(1);
  const args = [
    ...["run", `file:${machine.path("store")}/watched`, "--model", join(DEMO, "tiny-qwen3")],
    ...["--dataset", machine.path("rows.jsonl"), "--taps", "1,3", "--pack-bytes", "128KiB", "--no-gate"],
    ...[
      "--run-dir",
      machine.path("run"),
      "--port",
      String(port),
      "--progress",
      "quiet",
      "--disk-floor",
      "1MiB",
    ],
  ];
  const first = machine.start(args);
  const url = `http://127.0.0.1:${port}`;
  for (let up = false; !up; ) {
    up = await fetch(`${url}/healthz`).then(
      ({ ok }) => ok,
      () => false,
    );
    if (first.child.exitCode !== null) throw new Error((await first.ended).stderr);
  }
  const { page, complaints } = await openRunPage(browser, url);
  await page.evaluate(() => Object.assign(window, { sameDocument: true }));
  const share = async () => Number.parseFloat((await page.getByTestId("done-share").textContent()) ?? "");
  await page.waitForFunction(
    () => Number.parseFloat(document.querySelector("[data-testid=done-share]")?.textContent ?? "0") > 20,
    null,
    { timeout: 120_000 },
  );
  // The charts' past is written down every ten seconds.
  while (!existsSync(machine.path("run", "history.json"))) {
    expect(first.child.exitCode).toBeNull();
    await page.waitForTimeout(100);
  }
  first.child.kill("SIGKILL");
  await first.ended;
  const killedS = Date.now() / 1_000;
  const killedAt = await share();
  await page.waitForTimeout(3_000);

  const startedS = Date.now() / 1_000;
  const second = machine.start(args);
  const ended = second.ended;
  await page.getByText("samples that were already there").waitFor({ timeout: 60_000 });
  expect(await share()).toBeGreaterThanOrEqual(Math.floor(killedAt));

  // Who opens the page only now sees in its charts what was before, and that nobody measured in between.
  const { t } = (await (await fetch(`${url}/api/history`)).json()) as { t: number[] };
  expect(t.filter((at) => at < killedS).length).toBeGreaterThan(3);
  expect(t.filter((at) => at > killedS && at < startedS)).toEqual([]);
  const late = await openRunPage(browser, url);
  await late.page.getByLabel("as a table").check();
  const times = await late.page.locator(".charts tbody th").allTextContents();
  const clock = (s: number) => new Date(s * 1_000).toLocaleTimeString("en-GB");
  expect(times.filter((time) => time < clock(killedS)).length).toBeGreaterThan(3);
  expect(late.complaints).toEqual([]);
  await late.page.close();

  await page.getByTestId("state").getByText("Done").waitFor({ timeout: 120_000 });
  expect(await ended).toMatchObject({ code: 0 });
  // The supervisor is gone; its last word stays, and is not called old.
  expect(await page.getByTestId("done-share").textContent()).toBe("100.0 %");
  expect(await page.locator("main").getAttribute("data-freshness")).toBe("final");
  expect(await page.evaluate(() => "sameDocument" in window)).toBe(true);
  expect(complaints).toEqual([]);
}, 400_000);

test("one cursor runs through all charts, by mouse and by keyboard", async () => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url);
  const times = page.locator(".chart .readout time");
  expect(await times.count()).toBe(0);
  const box = (await page.locator(".u-over").first().boundingBox())!;
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  await page.waitForFunction(() => document.querySelectorAll(".chart .readout time").length === 6);
  expect(new Set(await times.allTextContents()).size).toBe(1);
  const middle = await times.first().textContent();

  await page.mouse.move(5, 5);
  await page.waitForFunction(() => document.querySelectorAll(".chart .readout time").length === 0);
  await page.locator(".chart-grid").focus();
  await page.keyboard.press("End");
  for (let i = 0; i < 3; i += 1) await page.keyboard.press("ArrowLeft");
  const byKey = await times.allTextContents();
  expect(byKey).toHaveLength(6);
  expect(new Set(byKey).size).toBe(1);
  expect(byKey[0]).not.toBe(middle);
  expect(await page.locator(".u-cursor-x").first().isVisible()).toBe(true);
  await page.keyboard.press("Escape");
  expect(await times.count()).toBe(0);
});

test("the axis of a chart that counts uploads has whole numbers only", async () => {
  // Without a word about it, the steps of this one would be 2.5.
  const { url } = await monitor({ s3: { inflight: 5, limit: 8 }, historyHours: 0 });
  const { page } = await openRunPage(browser, url);
  const canvas = page.locator(".chart", { hasText: "Uploads in flight" }).locator("canvas");
  const drawn = await canvas.evaluate(
    (element: HTMLCanvasElement) =>
      new Promise<string[]>((resolve) => {
        const context = element.getContext("2d")!;
        const fillText = context.fillText.bind(context);
        const texts: string[] = [];
        context.fillText = (text, ...place) => {
          // All of them are drawn at once.
          if (texts.length === 0) setTimeout(() => resolve(texts));
          texts.push(text);
          fillText(text, ...place);
        };
      }),
  );
  const ticks = drawn.filter((text) => text !== "" && !text.includes(":"));
  expect(ticks).toEqual(["0", "5"]);
});

test("the charts' figures stand in a table for who wants them there", async () => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url);
  await page.getByLabel("as a table").check();
  const table = page.locator(".charts table");
  expect(await table.locator("thead th").allTextContents()).toContain("tokens/s");
  expect(await table.locator("tbody tr").count()).toBeGreaterThan(10);
  expect(await page.locator(".plot").count()).toBe(0);
});

test("every control is reached by Tab, in the order in which it is read", async () => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url);
  const seen: string[] = [];
  for (let i = 0; i < 25; i += 1) {
    await page.keyboard.press("Tab");
    const name = await page.evaluate(() => {
      const at = document.activeElement;
      if (!at || at === document.body) return null;
      const label = at.getAttribute("aria-label") ?? at.closest("label")?.textContent;
      const region = at.getAttribute("aria-labelledby");
      return (
        label ??
        (region && document.getElementById(region)?.textContent) ??
        at.textContent ??
        ""
      ).trim();
    });
    if (name === null) break;
    seen.push(name);
  }
  expect(seen).toEqual(
    [
      "Skip to the run",
      "1 h",
      "as a table",
      "Charts. Arrow keys move the cursor through all of them.",
      "Table of engines",
      expect.stringContaining("Filter events by text"),
      expect.stringContaining("Least level of events shown"),
      "List of events",
      "Copy the resume command",
      "Table of skipped rows",
      "status as JSON",
      "its schema",
      "metrics",
    ].map((name) => (name === "1 h" ? expect.stringMatching(/^(10 min|1 h|6 h|all)$/) : name)),
  );
});

test("events are filtered by text and by level", async () => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url);
  const names = page.locator(".event b");
  expect((await names.allTextContents())[0]).toBe("status.published");
  await page.getByPlaceholder("filter").fill("engine=2");
  expect(await names.allTextContents()).toEqual(["engine.restarted", "engine.oom"]);
  await page.locator(".controls select").selectOption("warn");
  expect(await names.allTextContents()).toEqual(["engine.oom"]);
});

test("the resume command is copied, or selected where the browser forbids that", async () => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url, { permissions: ["clipboard-read", "clipboard-write"] });
  await page.getByRole("button", { name: "Copy the resume command" }).click();
  await page.getByRole("status").getByText("copied").waitFor();
  expect(await page.evaluate(() => navigator.clipboard.readText())).toMatch(/^forebay resume s3:/);
});

test("hostile strings are text: nothing runs, nothing is built from them, nothing hides in them", async () => {
  const { url } = await monitor({ hostile: true });
  const { page, complaints } = await openRunPage(browser, url);
  await page.locator(".event").first().waitFor();
  const found = await page.evaluate(() => ({
    pwned: "pwned" in window,
    built: document.querySelectorAll("#page img, #page script, #page iframe, #page a[href^='javascript']")
      .length,
    text: document.body.textContent ?? "",
    title: document.title,
  }));
  expect(found.pwned).toBe(false);
  expect(found.built).toBe(0);
  expect(found.text).toContain('<img src=x onerror="window.pwned=1">');
  expect(found.text).toContain("&lt;b&gt;");
  for (const text of [found.text, found.title]) {
    // biome-ignore lint/suspicious/noControlCharactersInRegex: their absence is the point
    expect(text).not.toMatch(/[\u0000-\u0008\u001b\u007f\u202a-\u202e\u2066-\u2069]/);
  }
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(1_280);
  expect(complaints).toEqual([]);
});

test.each(["light", "dark"] as const)("axe finds nothing in the %s theme", async (colorScheme) => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url, { colorScheme });
  for (const shown of ["charts", "table"]) {
    if (shown === "table") await page.getByLabel("as a table").check();
    await page.evaluate(AXE);
    const violations = await page.evaluate(async () => {
      const { axe } = window as unknown as { axe: { run(): Promise<{ violations: Violation[] }> } };
      interface Violation {
        id: string;
        nodes: { html: string; failureSummary: string }[];
      }
      return (await axe.run()).violations.map(({ id, nodes }) => ({
        id,
        nodes: nodes.slice(0, 3).map(({ html, failureSummary }) => `${html}\n${failureSummary}`),
      }));
    });
    expect(violations, shown).toEqual([]);
  }
});

test.each(["blocked", "degraded", "stopped"])("axe finds nothing in a run that is %s", async (state) => {
  const { url } = await monitor({ state });
  const { page } = await openRunPage(browser, url);
  await page.evaluate(AXE);
  const ids = await page.evaluate(async () => {
    const { axe } = window as unknown as { axe: { run(): Promise<{ violations: { id: string }[] }> } };
    return (await axe.run()).violations.map(({ id }) => id);
  });
  expect(ids).toEqual([]);
});

test.each([320, 390, 768, 1_024, 1_920])("at %d px nothing sticks out sideways", async (width) => {
  const { url } = await monitor();
  const { page } = await openRunPage(browser, url, { viewport: { width, height: 800 } });
  await page.waitForTimeout(100);
  expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(width);
  const outside = await page.evaluate(() =>
    [...document.querySelectorAll("main *")]
      .filter(
        (element) =>
          !element.closest(".scroll, .u-wrap, .hidden") &&
          element.getBoundingClientRect().right > innerWidth + 1,
      )
      .map((element) => element.outerHTML.slice(0, 120)),
  );
  expect(outside).toEqual([]);
});

test("the whole page is at most 60 KB on the wire", async () => {
  const { url } = await monitor();
  const html = await gzipBytes(`${url}/`);
  const names = [...html.text.matchAll(/(?:src|href)="([^"]+)"/g)].map((match) => match[1]!);
  expect(names.filter((name) => !name.startsWith("/"))).toEqual([]);
  expect(names.length).toBeGreaterThanOrEqual(3);
  let bytes = html.bytes;
  for (const name of names.filter((each) => !each.startsWith("/api")))
    bytes += (await gzipBytes(`${url}${name}`)).bytes;
  console.log(`page: ${(bytes / 1_024).toFixed(1)} KB gzipped`);
  expect(bytes).toBeLessThanOrEqual(GZIP_BYTES_MAX);
});

/** Bytes as sent with gzip; text as read without. */
async function gzipBytes(url: string): Promise<{ bytes: number; text: string }> {
  const read = (encoding: string) =>
    new Promise<Buffer>((resolve, reject) => {
      get(url, { headers: { "accept-encoding": encoding } }, (answer) => {
        const chunks: Buffer[] = [];
        answer.on("data", (chunk: Buffer) => chunks.push(chunk));
        answer.on("end", () => resolve(Buffer.concat(chunks)));
      }).on("error", reject);
    });
  return { bytes: (await read("gzip")).length, text: (await read("identity")).toString() };
}
