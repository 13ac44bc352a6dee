#!/usr/bin/env node
// npm run screenshots [-- URL]: the pictures of the page in docs/images, from the run at URL or, without one, from a
// real run made for it: two engines over GSM8K conversations into a local directory (about three minutes).
import { spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { build } from "./build.mjs";

const ROOT = dirname(dirname(fileURLToPath(import.meta.url)));
const IMAGES = join(ROOT, "docs/images");
const CLI = join(ROOT, "dist/cli.js");
const PICTURES = [
  {
    name: "page-light",
    colorScheme: "light",
    viewport: { width: 1280, height: 1240 },
    deviceScaleFactor: 1.5,
  },
  { name: "page-dark", colorScheme: "dark", viewport: { width: 1280, height: 1240 }, deviceScaleFactor: 1.5 },
  { name: "page-phone", colorScheme: "light", viewport: { width: 390, height: 1000 }, deviceScaleFactor: 2 },
];
/** So far that rates, charts, verdict and estimate all have something to say. */
const SHARE_WANTED = 0.4;

const [url] = process.argv.slice(2);
if (url) await picture(url);
else await withRealRun(picture);

async function picture(page) {
  mkdirSync(IMAGES, { recursive: true });
  const browser = await launch();
  try {
    for (const { name, ...options } of PICTURES) {
      const context = await browser.newContext({ ...options, locale: "en-GB" });
      const tab = await context.newPage();
      await tab.goto(page);
      await tab.getByTestId("state").waitFor();
      // One more snapshot, so that shares are of now and no bar is on its way.
      await sleep(2_500);
      await tab.screenshot({ path: join(IMAGES, `${name}.png`) });
      await context.close();
      console.log(`docs/images/${name}.png`);
    }
  } finally {
    await browser.close();
  }
}

/** CHROME_PATH, or the packaged one; it brings a font for machines that have none. */
async function launch() {
  const { default: packaged } = await import("@sparticuz/chromium");
  const executablePath = process.env.CHROME_PATH ?? (await packaged.executablePath());
  const fonts = existsSync("/usr/share/fonts") ? {} : { FONTCONFIG_PATH: join(tmpdir(), "fonts") };
  return await chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu"],
    env: { ...process.env, ...fonts },
  });
}

async function withRealRun(use) {
  await build();
  const scratch = mkdtempSync(join(tmpdir(), "forebay-"));
  // The page shows the command that resumes the run: its paths should tell nothing about this machine.
  const model = join(scratch, "tiny-qwen3");
  cpSync(join(ROOT, "demo/tiny-qwen3"), model, { recursive: true });
  const data = join(scratch, "gsm8k");
  const env = { ...process.env, XDG_STATE_HOME: join(scratch, "state"), HOME: scratch };
  let run;
  try {
    writeFileSync(join(scratch, "chats.jsonl"), longerDataset());
    await forebay(
      ["tokenize", "--model", model, "--input", join(scratch, "chats.jsonl"), "--output", data],
      env,
    );
    const port = await freePort();
    run = spawn(
      process.execPath,
      [
        ...[CLI, "run", `file:${join(scratch, "store")}/gsm8k`, "--model", model, "--dataset", data],
        ...["--taps", "1,3,5", "--engines", "2", "--pack-bytes", "512KiB", "--spool-bytes", "64MiB"],
        ...["--price-per-hour", "2.40", "--port", String(port), "--progress", "plain"],
      ],
      { env, stdio: ["ignore", "inherit", "inherit"] },
    );
    const page = `http://127.0.0.1:${port}`;
    await untilWorthAPicture(page, run);
    await use(page);
  } finally {
    if (run && run.exitCode === null) {
      run.kill("SIGTERM");
      await once(run, "exit");
    }
    rmSync(scratch, { recursive: true, force: true });
  }
}

/** The GSM8K test set six times over, no conversation twice. */
function longerDataset() {
  const lines = readFileSync(join(ROOT, "fixtures/gsm8k-test.jsonl"), "utf8").trim().split("\n");
  return Array.from({ length: 6 }, (_, round) =>
    lines.map((line) => line.replace('"content": "', `"content": "${"Again. ".repeat(round)}`)).join("\n"),
  ).join("\n");
}

async function untilWorthAPicture(page, run) {
  for (;;) {
    if (run.exitCode !== null)
      throw new Error(`the run ended with ${run.exitCode} before its picture was taken`);
    await sleep(1_000);
    const document = await fetch(`${page}/api/status`).then(
      (answer) => answer.json(),
      () => null,
    );
    if (!document) continue;
    const { tokens, eta } = document.extraction;
    if (eta.p50_s !== null && tokens.done >= SHARE_WANTED * tokens.total) return;
  }
}

async function forebay(args, env) {
  const child = spawn(process.execPath, [CLI, ...args], { env, stdio: ["ignore", "ignore", "inherit"] });
  const [code] = await once(child, "exit");
  if (code !== 0) throw new Error(`forebay ${args[0]} exited with ${code}`);
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}
