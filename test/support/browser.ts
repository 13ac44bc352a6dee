import { type ChildProcess, spawn } from "node:child_process";
import { createServer } from "node:net";
import { fileURLToPath } from "node:url";
import { type Browser, type BrowserContextOptions, chromium, type Page } from "playwright-core";

const MONITOR_CHILD = fileURLToPath(new URL("monitor-child.mjs", import.meta.url));

/** Headless Chromium: CHROME_PATH, or the one in an npm package, which needs no root. */
export async function launchBrowser(): Promise<Browser> {
  const executablePath = process.env.CHROME_PATH ?? (await packagedChromium());
  // Its own flags are for single-process Lambda and switch web security off, which is what we test.
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
}

async function packagedChromium(): Promise<string> {
  const { default: packaged } = await import("@sparticuz/chromium");
  return packaged.executablePath();
}

export interface OpenedPage {
  page: Page;
  /** What the browser complained about: uncaught errors, policy violations. Lost connections are not among them. */
  complaints: string[];
  /** URLs asked of anyone. */
  requested: string[];
}

/** Opens the page of a run, of a scripted monitor or of a real one, and waits for its first figures. */
export async function openRunPage(
  browser: Browser,
  url: string,
  options: BrowserContextOptions & { waitForRun?: boolean; clock?: boolean } = {},
): Promise<OpenedPage> {
  const { waitForRun = true, clock = false, ...contextOptions } = options;
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...contextOptions });
  const page = await context.newPage();
  if (clock) await page.clock.install();
  const complaints: string[] = [];
  const requested: string[] = [];
  page.on("pageerror", (error) => complaints.push(error.message));
  page.on("console", (message) => {
    if (message.type() === "error" && !/net::ERR_/.test(message.text())) complaints.push(message.text());
  });
  page.on("request", (request) => requested.push(request.url()));
  await page.goto(url);
  if (waitForRun) await page.getByTestId("state").waitFor();
  return { page, complaints, requested };
}

export interface MonitorChild {
  url: string;
  port: number;
  pid: number;
  /** Everything that it has printed. */
  said: string;
  /** Resolves when it has printed `text`. */
  says(text: string): Promise<void>;
  signal(signal: NodeJS.Signals): void;
  /** SIGKILL, and wait until it is gone. */
  kill(): Promise<void>;
}

/** A monitor over a scripted run, in a process of its own. */
export async function startMonitorChild(
  options: Record<string, unknown> = {},
  port?: number,
): Promise<MonitorChild> {
  const wanted = port ?? (await freePort());
  const child = spawn(process.execPath, [MONITOR_CHILD, String(wanted), JSON.stringify(options)], {
    stdio: ["ignore", "pipe", "inherit"],
  });
  let said = "";
  child.stdout!.on("data", (chunk: Buffer) => {
    said += chunk.toString();
  });
  const says = (text: string) => untilPrinted(child, () => said.includes(text), `said ${text}`);
  await untilPrinted(child, () => said.includes("\n"), "listened");
  return {
    url: said.split("\n")[0]!,
    port: wanted,
    pid: child.pid!,
    get said() {
      return said;
    },
    says,
    signal: (signal) => void child.kill(signal),
    kill: () =>
      new Promise((resolve) => {
        if (child.exitCode !== null || child.signalCode !== null) resolve();
        child.once("exit", () => resolve());
        child.kill("SIGKILL");
      }),
  };
}

function untilPrinted(child: ChildProcess, isSo: () => boolean, what: string): Promise<void> {
  return new Promise((resolve, reject) => {
    const look = () => {
      if (isSo()) resolve();
    };
    child.stdout!.on("data", look);
    child.once("exit", (code) => reject(new Error(`the monitor child ended with ${code} before it ${what}`)));
    look();
  });
}

function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer();
    server.on("error", reject);
    server.listen(0, "127.0.0.1", () => {
      const address = server.address();
      server.close(() => resolve(typeof address === "object" && address ? address.port : 0));
    });
  });
}
