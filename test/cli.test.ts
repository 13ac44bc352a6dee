import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, beforeEach, describe, expect, test } from "vitest";

const CLI = fileURLToPath(new URL("../dist/cli.js", import.meta.url));
const MODEL = fileURLToPath(new URL("../demo/tiny-qwen3", import.meta.url));
const DATASET = fileURLToPath(new URL("../fixtures/datasets/plain", import.meta.url));
const VERBS = [
  ...["demo", "init", "doctor", "tokenize", "taps", "plan", "check", "run", "resume"],
  ...["status", "logs", "stop", "restart", "set", "ls", "verify", "read", "export"],
];

let directory: string;
let env: NodeJS.ProcessEnv;
let children: ChildProcess[] = [];

beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "forebay-cli-"));
  env = { PATH: process.env.PATH, HOME: directory, XDG_STATE_HOME: join(directory, "state") };
});

afterEach(async () => {
  for (const child of children) {
    if (child.exitCode !== null || child.signalCode !== null) continue;
    child.kill("SIGKILL");
    await once(child, "exit");
  }
  children = [];
  rmSync(directory, { recursive: true, force: true });
});

interface Ran {
  code: number | null;
  stdout: string;
  stderr: string;
}

function forebay(args: string[], more: NodeJS.ProcessEnv = {}): Promise<Ran> {
  return new Promise((resolve) => {
    const options = { cwd: directory, env: { ...env, ...more }, maxBuffer: 64 * 2 ** 20 };
    const child = execFile(process.execPath, [CLI, ...args], options, (_error, stdout, stderr) => {
      resolve({ code: child.exitCode, stdout, stderr });
    });
    children.push(child);
  });
}

/** A dataset of token ids that keeps an engine busy for a while. */
function longDataset(rows: number): string {
  const path = join(directory, "rows.jsonl");
  const line = (row: number) => {
    const ids = Array.from({ length: 60 + (row % 200) }, (_, i) => 1 + ((row * 31 + i * 7) % 900));
    return JSON.stringify({ input_ids: ids });
  };
  writeFileSync(path, `${Array.from({ length: rows }, (_, row) => line(row)).join("\n")}\n`);
  return path;
}

const runArgs = (address: string, dataset = DATASET, ...more: string[]) => [
  ...["run", address, "--model", MODEL, "--dataset", dataset, "--taps", "1,3", "--pack-bytes", "512KiB"],
  ...["--spool-bytes", "64MiB", "--disk-floor", "16MiB", "--no-gate", ...more],
];

const FIRST = ["file:runs/a", "--model", MODEL, "--dataset", DATASET, "--taps", "1"];
const RUNNING = ["--engine", "vllm", "--vllm", "http://127.0.0.1:1"];

describe("help and arguments", () => {
  test.each(VERBS)("%s --help shows an example and --json", async (verb) => {
    const { code, stdout } = await forebay([verb, "--help"]);
    expect(code).toBe(0);
    expect(stdout).toContain(`$ forebay ${verb}`);
    expect(stdout).toContain("--json");
  });

  test("help says what a flag does, and not its opposite; and that packs need no export", async () => {
    const text = async (verb: string) => (await forebay([verb, "--help"])).stdout.replaceAll(/\s+/g, " ");
    expect(await text("run")).toContain(
      "--no-gate leave out the check of the engine's states before the run",
    );
    expect(await text("export")).toMatch(/readers for torch and speculators need no export/);
  });

  test("help lists every verb and no internal one", async () => {
    const { stdout } = await forebay(["--help"]);
    for (const verb of VERBS) expect(stdout).toMatch(new RegExp(`^  ${verb}\\b`, "m"));
    expect(stdout).not.toContain("supervise");
  });

  test.each([
    [["run", "--spool-byte", "1GiB"], "--spool-bytes"],
    [["verfy", "file:a/b"], "verify"],
    [["verify", "file:a/b", "--deeep"], "--deep"],
  ])("%j exits 2 and names what was meant", async (args, meant) => {
    const { code, stderr, stdout } = await forebay(args);
    expect([code, stdout]).toEqual([2, ""]);
    expect(stderr).toContain(`Did you mean ${meant}`);
  });

  test("an unknown key in run.yaml exits 78 with its line and the nearest one, and starts nothing", async () => {
    writeFileSync(join(directory, "run.yaml"), "address: file:runs/a\nspool_byte: 1GiB\n");
    const { code, stderr } = await forebay(["run"]);
    expect(code).toBe(78);
    expect(stderr).toContain("run.yaml:2");
    expect(stderr).toContain("spool-bytes");
    expect(existsSync(join(directory, "state"))).toBe(false);
  });

  test("a unit that does not parse exits 2 with what is expected, and --json tells it as JSON", async () => {
    const args = runArgs("file:runs/a", DATASET, "--inflight-bytes", "2 gigs");
    const plain = await forebay(args);
    expect(plain.code).toBe(2);
    expect(plain.stderr).toContain("expected a size such as");
    const { stderr } = await forebay([...args, "--json"]);
    expect(JSON.parse(stderr)).toMatchObject({ event: "error", subject: "--inflight-bytes", exit: 2 });
    expect(existsSync(join(directory, "runs"))).toBe(false);
  });

  test.each([
    [["run", ...FIRST], ["--devices", "7"], "transformers or vllm"],
    [["run", ...FIRST], ["--vllm", "http://127.0.0.1:1"], "vllm"],
    [["run", ...FIRST, "--engine", "transformers"], ["--serve"], "vllm"],
    [["check", "--model", MODEL, "--taps", "1"], ["--attn", "sdpa"], "transformers"],
    [["check", "--model", MODEL, "--taps", "1"], ["--python", "python3"], "transformers or vllm"],
    [["check", "--model", MODEL, "--taps", "1", "--engine", "vllm", "--serve"], ["--strict"], "transformers"],
    [["check", "--model", MODEL, "--taps", "1", ...RUNNING], ["--devices", "0"], "--serve"],
  ])("%j %j exits 2 and says that it is for %s", async (args, flag, taker) => {
    const { code, stderr } = await forebay([...args, ...flag]);
    expect(code, stderr).toBe(2);
    expect(stderr).toContain(`${flag[0]} is for`);
    expect(stderr).toContain(taker);
    expect(existsSync(join(directory, "runs/a/run.json"))).toBe(false);
  });

  test("a flag of the second engine is none of another's; nor is what run.yaml says for another engine", async () => {
    const check = ["check", "--model", MODEL, "--taps", "1"];
    const second = await forebay([...check, "--against", "transformers", "--python", "no-such-python"]);
    expect(second).toMatchObject({ code: 78, stderr: expect.stringContaining("no-such-python") });
    writeFileSync(join(directory, "run.yaml"), "engine: transformers\nattn: sdpa\ndevices: 0,1\n");
    const onnx = await forebay([...check, "--engine", "onnx"]);
    expect(onnx.code, onnx.stderr).toBe(0);
  });

  test.each([
    ["./models/foo"],
    ["models/foo/"],
    ["models/a/b"],
    ["foo"],
    [join(tmpdir(), "forebay-nowhere/foo")],
  ])("a model at %s, where there is none, is no hub id: no such directory", async (model) => {
    writeFileSync(join(directory, "chats.jsonl"), "{}\n");
    for (const verb of [["taps"], ["tokenize", "--input", "chats.jsonl", "--output", "out"]]) {
      const { code, stderr } = await forebay([...verb, "--model", model]);
      expect(code).toBe(78);
      expect(stderr).toContain("no such directory");
      expect(stderr).toContain(`where: ${resolve(directory, model)}`);
      expect(stderr).not.toContain("hf download");
    }
  });

  test("a hub id is looked for in the cache alone, and a directory of that name comes first", async () => {
    const absent = await forebay(["taps", "--model", "Org/Absent"]);
    expect(absent).toMatchObject({ code: 78, stderr: expect.stringContaining("hf download Org/Absent") });
    cpSync(MODEL, join(directory, "yaml/Org/Here"), { recursive: true });
    writeFileSync(join(directory, "yaml/run.yaml"), "model: Org/Here\n");
    const found = await forebay(["taps", "--config", "yaml/run.yaml"]);
    expect(found.code, found.stderr).toBe(0);
  });

  test("--print-settings shows each value and where it came from, and starts nothing", async () => {
    writeFileSync(join(directory, "run.yaml"), "address: file:runs/a\nseed: 3\ntaps: [1, 3]\n");
    const { stdout, code } = await forebay(["run", "--print-settings", "--engines", "2", "--json"], {
      FOREBAY_UPLOADS: "7",
    });
    const { address, settings } = JSON.parse(stdout);
    expect([code, address]).toEqual([0, "file:runs/a"]);
    expect(settings.seed).toEqual({ value: 3, source: "run.yaml" });
    expect(settings.uploads).toEqual({ value: 7, source: "environment" });
    expect(settings.engines).toEqual({ value: 2, source: "flag" });
    expect(settings["pack-bytes"].source).toBe("default");
    expect(existsSync(join(directory, "state"))).toBe(false);
  });

  test("init writes a file that run reads, and never overwrites one", async () => {
    expect((await forebay(["init", "file:runs/a", "--seed", "5"])).code).toBe(0);
    const { stdout } = await forebay(["run", "--print-settings", "--json"]);
    expect(JSON.parse(stdout)).toMatchObject({ address: "file:runs/a", settings: { seed: { value: 5 } } });
    const before = readFileSync(join(directory, "run.yaml"), "utf8");
    expect((await forebay(["init"])).code).toBe(2);
    expect(readFileSync(join(directory, "run.yaml"), "utf8")).toBe(before);
  });

  test("a pipe that closes early is quiet", async () => {
    const shell = spawn("/bin/sh", ["-c", `"${process.execPath}" "${CLI}" run --help | head -n 1`], {
      cwd: directory,
      env,
    });
    children.push(shell);
    let stderr = "";
    shell.stderr.on("data", (chunk) => {
      stderr += chunk;
    });
    shell.stdout.resume();
    await once(shell, "close");
    expect(stderr).toBe("");
  });
});

describe("looking for what is not there", () => {
  test("status says what it looked for", async () => {
    const { code, stderr } = await forebay(["status", "file:runs/none"]);
    expect(code).toBe(2);
    for (const name of ["run.json", "status/", "supervisor.json"]) expect(stderr).toContain(name);
  });

  test("stop of what does not run is no failure; set, restart and logs of it say where they looked", async () => {
    expect((await forebay(["stop", "file:runs/none"])).code).toBe(0);
    for (const args of [
      ["set", "file:runs/none", "uploads=8"],
      ["restart", "file:runs/none"],
      ["logs", "file:runs/none"],
    ]) {
      const { code, stderr } = await forebay(args);
      expect(code).toBe(2);
      expect(stderr).toContain(join(directory, "state"));
    }
  });

  test("ls of a store without runs says what it looked for", async () => {
    const { code, stdout } = await forebay(["ls", `file:${directory}`]);
    expect(code).toBe(0);
    expect(stdout).toContain("run.json");
  });
});

describe("tokenize", () => {
  const chats = '{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yes"}]}\n';

  test("makes the directories above its output", async () => {
    writeFileSync(join(directory, "chats.jsonl"), chats);
    const words = ["tokenize", "--model", MODEL, "--input", "chats.jsonl", "--output", "data/new/train"];
    const { code, stderr } = await forebay(words);
    expect(code, stderr).toBe(0);
    expect(existsSync(join(directory, "data/new/train/state.json"))).toBe(true);
  });

  test("of conversations that are not there says so by the flag that named them, and makes nothing", async () => {
    const words = ["tokenize", "--model", MODEL, "--input", "none.jsonl", "--output", "data/train"];
    const { code, stderr } = await forebay(words);
    expect(code).toBe(78);
    expect(stderr).toContain("none.jsonl");
    expect(stderr).toContain("check --input");
    expect(stderr).not.toContain("--dataset");
    expect(existsSync(join(directory, "data"))).toBe(false);
  });
});

describe("a run on this machine", () => {
  test("demo makes, verifies and explains a run; a second demo resumes and finds nothing to do", async () => {
    const first = await forebay(["demo"]);
    expect(first.code, first.stderr).toBe(0);
    expect(first.stdout).toContain("200 conversations");
    expect(first.stdout).toContain("forebay read file:demo-run/demo");
    const again = JSON.parse((await forebay(["demo", "--json"])).stdout);
    expect(again).toMatchObject({ ok: true, nothing_to_do: true, rows: { planned: 200, committed: 200 } });
  });

  test("check proves an engine's states on its own, and refuses a model that the engine cannot run", async () => {
    const proven = await forebay(["check", "--model", MODEL, "--taps", "1,3", "--json"]);
    expect(proven.code, proven.stderr).toBe(0);
    expect(JSON.parse(proven.stdout)).toMatchObject({ ok: true, engine: "onnx" });
    const gemma = fileURLToPath(new URL("../fixtures/models/random-gemma3", import.meta.url));
    const { code, stderr } = await forebay(["check", "--model", gemma, "--taps", "1"]);
    expect(code).toBe(7);
    expect(stderr).toContain("Gemma3ForCausalLM");
  });

  test.each([
    ["without its gate", "file:runs/ungated", (arg: string) => arg],
    ["with it", "file:runs/gated", (arg: string) => (arg === "--no-gate" ? [] : arg)],
  ])("a run %s is told from one the other way by its run.json", async (_, address, change) => {
    const { code, stderr } = await forebay(runArgs(address).flatMap(change));
    expect(code, stderr).toBe(0);
    const record = JSON.parse(readFileSync(join(directory, address.slice(5), "run.json"), "utf8"));
    expect(record.facts.gate).toBe(address === "file:runs/gated");
  });

  test("run, run again, status, ls, verify and read go together; stdout is data and stderr progress", async () => {
    const first = await forebay([...runArgs("file:runs/a"), "--json"]);
    expect(first.code, first.stderr).toBe(0);
    expect(JSON.parse(first.stdout)).toMatchObject({ state: "done", exit_code: 0, samples: 40, total: 40 });
    const again = JSON.parse((await forebay([...runArgs("file:runs/a"), "--json"])).stdout);
    expect(again).toMatchObject({ state: "done", samples: 40 });

    const status = JSON.parse((await forebay(["status", "file:runs/a", "--json"])).stdout);
    expect(status.extraction.total_processed).toBe(40);
    // The bucket alone, from a machine that has never seen the run.
    const elsewhere = await forebay(["status", "file:runs/a", "--json"], {
      XDG_STATE_HOME: join(directory, "other"),
    });
    expect(JSON.parse(elsewhere.stdout)).toMatchObject({
      run: { state: "done" },
      extraction: { total_processed: 40 },
    });

    const [listed] = JSON.parse((await forebay(["ls", "file:runs", "--json"])).stdout);
    expect(listed.address).toMatch(/\/runs\/a$/);
    const verified = await forebay(["verify", "file:runs/a", "--deep", "--json"]);
    expect(verified.code).toBe(0);
    expect(JSON.parse(verified.stdout)).toMatchObject({
      ok: true,
      rows: { planned: 40, committed: 40, skipped: 0, missing: 0, duplicate: 0, corrupt: 0 },
    });
    const sample = JSON.parse((await forebay(["read", "file:runs/a", "7", "--check", "--json"])).stdout);
    expect(sample).toMatchObject({ row: 7, taps: [1, 3], checked: true });
    expect(sample.shape).toEqual([sample.token_ids.length, 2, 192]);
    expect((await forebay(["read", "file:runs/a", "40"])).code).toBe(2);
  });

  test("other settings of the same run exit 4 with the difference, and change nothing", async () => {
    expect((await forebay(runArgs("file:runs/a"))).code).toBe(0);
    const { code, stderr } = await forebay(runArgs("file:runs/a", DATASET, "--seed", "9"));
    expect(code).toBe(4);
    expect(stderr).toContain("plan (order, seed");
    expect((await forebay(["verify", "file:runs/a", "--deep"])).code).toBe(0);
  });

  test("a run that is refused leaves what restart would start as it was; one that is accepted replaces it", async () => {
    const args = runArgs("file:runs/a", DATASET, "--run-dir", "run-state");
    const instead = (old: string, now: string) => args.map((arg) => (arg === old ? now : arg));
    const file = join(directory, "run-state/launch.json");
    const launch = () => JSON.parse(readFileSync(file, "utf8"));
    const wrong = [
      instead("1,3", "1,99"),
      instead(MODEL, join(directory, "no-model")),
      instead(DATASET, join(directory, "no-dataset")),
      [...args, "--seed", "9"],
    ];
    const codes = async (runs: string[][]) => {
      const found: (number | null)[] = [];
      for (const words of runs) found.push((await forebay(words)).code);
      return found;
    };
    expect(await codes(wrong.slice(0, 3))).toEqual([2, 78, 78]);
    expect(existsSync(file)).toBe(false);

    expect((await forebay(args)).code).toBe(0);
    const good = launch();
    expect(good).toMatchObject({ generation: 1, verb: "run", settings: { taps: { text: "1,3" } } });
    expect(await codes(wrong)).toEqual([2, 78, 78, 4]);
    expect(launch()).toEqual(good);
    expect(await codes([[...wrong[3]!, "--detach"]])).toEqual([4]);
    expect(launch()).toEqual(good);

    const more = await forebay([...args, "--engines", "2"]);
    expect(more.code, more.stderr).toBe(0);
    expect(launch()).toMatchObject({ generation: 2, settings: { engines: { text: "2" } } });
  });

  test("a start that is refused leaves what status tells of the run as it was, detached or not", async () => {
    const args = runArgs("file:runs/a", DATASET, "--run-dir", "run-state");
    expect((await forebay(args)).code).toBe(0);
    const heartbeat = join(directory, "runs/a/status/1-of-1.json");
    const stood = JSON.parse(readFileSync(heartbeat, "utf8"));
    const files = () =>
      ["status.json", "history.json", "supervisor.json", "launch.json"].map((name) =>
        readFileSync(join(directory, "run-state", name), "utf8"),
      );
    const before = files();
    const refusals: [exit: number, flags: string[]][] = [
      [2, ["--spool-bytes", "600KiB"]],
      [2, ["--taps", "1,3", "--for", "zlab"]],
      [4, ["--seed", "9"]],
      [78, ["--rows", "100:200"]],
    ];
    for (const [exit, flags] of refusals) {
      const words =
        flags[0] === "--spool-bytes"
          ? args.map((arg) => (arg === "64MiB" ? flags[1]! : arg))
          : [...args, ...flags];
      for (const more of [[], ["--detach"]]) {
        const refused = await forebay([...words, ...more]);
        expect([refused.code, flags], refused.stderr).toEqual([exit, flags]);
        expect(files()).toEqual(before);
      }
    }
    // Another Forebay works on this part: this very process, says its heartbeat.
    const run = { ...stood.run, state: "running", host: hostname(), pid: process.pid };
    writeFileSync(heartbeat, JSON.stringify({ ...stood, run }));
    for (const more of [[], ["--detach"]]) expect((await forebay([...args, ...more])).code).toBe(5);
    expect(files()).toEqual(before);
    writeFileSync(heartbeat, JSON.stringify(stood));

    const seen = async (more: NodeJS.ProcessEnv, ...flags: string[]) => {
      const { stdout } = await forebay(["status", "file:runs/a", "--json", ...flags], more);
      return JSON.parse(stdout).run;
    };
    expect(await seen({}, "--run-dir", "run-state")).toMatchObject({ state: "done", id: stood.run.id });
    // Nor does a machine that knew nothing of it take its own refusal for the run.
    const elsewhere = { XDG_STATE_HOME: join(directory, "other") };
    const other = args.slice(0, args.indexOf("--run-dir"));
    expect((await forebay([...other, "--seed", "9"], elsewhere)).code).toBe(4);
    expect(await seen(elsewhere)).toMatchObject({ state: "done", id: stood.run.id });
  });

  test("restart with another engine leaves behind what was only for the first", async () => {
    const other = ["--engine", "transformers", "--python", "no-such-python", "--attn", "sdpa"];
    const args = runArgs("file:runs/a", DATASET, "--run-dir", "run-state");
    expect((await forebay([...args, "--threads", "1"])).code).toBe(0);
    const file = join(directory, "run-state/launch.json");
    const launch = JSON.parse(readFileSync(file, "utf8"));
    const words = Object.fromEntries(
      [0, 2, 4].map((i) => [other[i]!.slice(2), { text: other[i + 1], source: "flag" }]),
    );
    writeFileSync(file, JSON.stringify({ ...launch, settings: { ...launch.settings, ...words } }));
    const onnx = await forebay(["restart", "file:runs/a", "--run-dir", "run-state", "--engine", "onnx"]);
    expect(onnx.code, onnx.stderr).toBe(0);
    expect(onnx.stderr).toContain("attn: sdpa -> its default");
    const { settings } = JSON.parse(readFileSync(file, "utf8"));
    expect(settings).toMatchObject({ engine: { text: "onnx" }, threads: { text: "1" } });
    expect(Object.keys(settings)).not.toEqual(expect.arrayContaining(["attn"]));
    expect(Object.keys(settings)).not.toEqual(expect.arrayContaining(["python"]));
  });

  test("restart with settings that are refused leaves those that were accepted for the next", async () => {
    const args = runArgs("file:runs/a", DATASET, "--run-dir", "run-state");
    expect((await forebay(args)).code).toBe(0);
    const launch = () => readFileSync(join(directory, "run-state/launch.json"), "utf8");
    const before = launch();
    const restart = ["restart", "file:runs/a", "--run-dir", "run-state"];
    expect((await forebay([...restart, "--spool-bytes", "600KiB"])).code).toBe(2);
    expect(launch()).toBe(before);
    expect((await forebay(restart)).code).toBe(0);
  });

  test("Ctrl-C ends a run gracefully with 130, its --on-exit command hears that, and the same command goes on", async () => {
    const args = runArgs(
      "file:runs/long",
      longDataset(120),
      "--on-exit",
      'echo "$FOREBAY_EXIT_CODE" > exit-code',
    );
    const child = spawn(process.execPath, [CLI, ...args, "--progress", "json"], { cwd: directory, env });
    children.push(child);
    child.stdout.resume();
    await new Promise<void>((resolve) => {
      child.stderr.on("data", (chunk: Buffer) => chunk.includes("batch.committed") && resolve());
    });
    child.kill("SIGINT");
    const [code] = await once(child, "exit");
    expect(code).toBe(130);
    expect(readFileSync(join(directory, "exit-code"), "utf8")).toBe("130\n");
    const done = JSON.parse((await forebay([...args, "--json"])).stdout);
    expect(done).toMatchObject({ state: "done", samples: 120 });
    expect((await forebay(["verify", "file:runs/long", "--deep"])).code).toBe(0);
  });

  test("a detached run is restarted when it is killed, changed by set and restart, and ended by stop", async () => {
    const address = "file:runs/detached";
    const started = await forebay([...runArgs(address, longDataset(4_000)), "--detach", "--json"]);
    expect(started.code, started.stderr).toBe(0);
    const facts = JSON.parse(started.stdout);
    expect(facts.tunnel).toContain("ssh -L");
    const supervisorPid = () =>
      JSON.parse(readFileSync(join(facts.run_directory, "supervisor.json"), "utf8")).process.pid as number;
    try {
      const live = JSON.parse((await forebay(["status", address, "--json"])).stdout);
      expect(live.run.page_url).toBe(facts.page_url);
      const second = await forebay(runArgs(address, join(directory, "rows.jsonl")));
      expect([second.code, second.stderr]).toEqual([5, expect.stringContaining("runs already")]);

      const set = await forebay(["set", address, "uploads=3", "--json"]);
      expect(JSON.parse(set.stdout)).toMatchObject({ changed: { uploads: 3 } });

      const killed = supervisorPid();
      process.kill(killed, "SIGKILL");
      while (supervisorPid() === killed) await new Promise((resolve) => setTimeout(resolve, 100));

      const restarted = await forebay(["restart", address, "--engines", "2", "--json"]);
      expect(restarted.code, restarted.stderr).toBe(0);
      expect(restarted.stderr).toMatch(/^committed /m);
      expect(restarted.stderr).toContain("engines: its default -> 2");
      const after = JSON.parse((await forebay(["status", address, "--json"])).stdout);
      expect(after.engines.length).toBe(2);
      expect(after.s3.limit).toBe(3);
      expect(after.run.resumed_from.batches).toBeGreaterThan(0);
    } finally {
      const stopped = await forebay(["stop", address]);
      expect(stopped.code).toBe(0);
    }
    expect(() => process.kill(supervisorPid(), 0)).toThrow();
    const last = JSON.parse((await forebay(["status", address, "--json"])).stdout);
    expect(last.run.state).toBe("stopped");
    expect(last.extraction.total_processed).toBeGreaterThan(0);
  });

  test("a detached run that cannot start returns its exit code and its error", async () => {
    const { code, stdout, stderr } = await forebay([
      ...runArgs("file:runs/bad", join(directory, "no-such")),
      "--detach",
    ]);
    expect(code).toBeGreaterThan(1);
    expect(stderr).toContain("no-such");
    expect(stdout).toContain(`exit code ${code}`);
  });
});
