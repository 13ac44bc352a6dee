import { expect, test } from "vitest";
import { resolveSettings, type SettingTexts } from "../config/resolve.ts";
import { SETTINGS, settingKey } from "../config/settings.ts";
import { runDirectoryPath } from "../control/run-directory.ts";
import type { StoreSpec } from "../store/store.ts";
import { type EngineName, namedEngine, refuseForeignFlags } from "./engine-flags.ts";
import { resumeCommand } from "./resume-command.ts";
import type { RunPlace } from "./run-place.ts";

const ENV = { XDG_STATE_HOME: "/state" };
const BUCKET: StoreSpec = {
  kind: "s3",
  bucket: "bucket",
  prefix: "prefix/name",
  endpoint: null,
  region: "us-east-1",
  profile: null,
  pathStyle: true,
};

function command(
  flags: SettingTexts,
  place: Partial<RunPlace> = {},
  env: Record<string, string> = {},
  known: EngineName | null = null,
): string {
  const asked = { model: "/models/m", dataset: "rows", taps: "1,3", ...flags };
  const settings = resolveSettings({ verb: "run", flags: asked, env, file: null, directory: "/home/me" });
  const { part } = settings.values;
  const address = "s3://bucket/name";
  const directory = runDirectoryPath({ stateHome: "/state", address, part });
  const at = { spec: BUCKET, address, directory, ...place };
  return resumeCommand(at, settings, { engine: known ?? namedEngine(settings), env: ENV });
}

test("what is at its default, and what the store holds, is not in it", () => {
  const settings = { seed: "3", "pack-bytes": "1MiB", "price-per-hour": "12", progress: "plain" };
  expect(command(settings)).toBe("forebay resume s3://bucket/name --model /models/m");
});

test("all that the engine, the spool and the store need is in it, wherever it was written", () => {
  const flags = {
    part: "2/4",
    engine: "transformers",
    devices: "0,1",
    python: "venv/bin/python",
    threads: "4",
    "forward-tokens": "4096",
    dtype: "bfloat16",
    attn: "sdpa",
    strict: "true",
    gate: "false",
    spool: "my spool",
    profile: "training",
  };
  expect(command(flags, {}, { FOREBAY_ALLOW_SLOW_KERNELS: "yes", FOREBAY_SPOOL_BYTES: "2GiB" })).toBe(
    "forebay resume s3://bucket/name --model /models/m --part 2/4 --engine transformers --devices 0,1 " +
      "--python /home/me/venv/bin/python --threads 4 --dtype bfloat16 --forward-tokens 4096 --attn sdpa --strict " +
      "--allow-slow-kernels --no-gate --spool '/home/me/my spool' --spool-bytes 2GiB --profile training",
  );
});

test("servers, and their arguments, each by its own flag", () => {
  const urls = ["http://a:1", "http://b:1"];
  expect(command({ engine: "vllm", vllm: urls })).toMatch(
    / --engine vllm --vllm http:\/\/a:1 --vllm http:\/\/b:1$/,
  );
  expect(command({ engine: "vllm", serve: "true", "vllm-arg": ["--max-model-len", "8192"] })).toMatch(
    / --engine vllm --serve --vllm-arg=--max-model-len --vllm-arg 8192$/,
  );
});

test("the store as it was found, by whatever said where it is", () => {
  const spec = { ...BUCKET, endpoint: "https://s3.example.com", region: "eu-west-1" };
  expect(command({}, { spec })).toMatch(/ --endpoint https:\/\/s3.example.com --region eu-west-1$/);
});

test("a run directory of a person's own, which holds the spool, and not the usual one", () => {
  expect(command({ "run-dir": "/scratch/run" }, { directory: "/scratch/run" })).toMatch(
    / --run-dir \/scratch\/run$/,
  );
});

test("what may hold a secret is not: it is shown in status, on the page and in the store", () => {
  const secret = ["HF_HOME=/secret"];
  const all = { "engine-env": secret, "heartbeat-url": "https://ping/secret", "on-exit": "echo secret" };
  expect(command(all)).not.toContain("secret");
});

/** The settings that a resume command asks for, read as a shell and the command line would. */
function readBack(line: string) {
  const flags: Record<string, string[]> = {};
  const words = [...line.matchAll(/'([^']*)'|(\S+)/g)].map(([, quoted, plain]) => quoted ?? plain!).slice(3);
  while (words.length > 0) {
    const [, no, given, value] = /^--(no-)?([^=]+)=?(.*)$/s.exec(words.shift()!)!;
    const { isSwitch } = SETTINGS[settingKey(given!)!].kind;
    const text = isSwitch ? String(no === undefined) : value || words.shift()!;
    flags[given!] = [...(flags[given!] ?? []), text];
  }
  return resolveSettings({ verb: "resume", flags, env: {}, file: null, directory: "/" });
}

const EVERY_ENGINE = {
  FOREBAY_PYTHON: "/venv/bin/python",
  FOREBAY_DEVICES: "0,1",
  FOREBAY_THREADS: "4",
  FOREBAY_ATTN: "sdpa",
  FOREBAY_STRICT: "yes",
  FOREBAY_ALLOW_SLOW_KERNELS: "yes",
};

test.each<[string, SettingTexts, string[]]>([
  ["onnx", { engine: "onnx" }, ["threads"]],
  ["transformers", { engine: "transformers" }, ["python", "devices", "threads", "attn"]],
  ["vllm", { engine: "vllm", vllm: ["http://a:1"] }, []],
  ["vllm", { engine: "vllm", serve: "true", "vllm-arg": ["--max-model-len=9"] }, ["python", "devices"]],
])(
  "what the environment says for every engine: the command for %s is one that it takes",
  (_, flags, kept) => {
    const resolved = readBack(command(flags, {}, EVERY_ENGINE));
    expect(() => refuseForeignFlags(resolved, [resolved.values.engine])).not.toThrow();
    expect(Object.keys(resolved.written)).toEqual(expect.arrayContaining(kept));
  },
);

test("where only the store names the engine, the command takes what fits every one until that is known", () => {
  expect(command({}, {}, EVERY_ENGINE)).toBe("forebay resume s3://bucket/name --model /models/m");
  expect(command({ attn: "sdpa" }, {}, EVERY_ENGINE)).toContain(" --attn sdpa");
  const begunWith = (engine: EngineName) => command({}, {}, EVERY_ENGINE, engine);
  expect(begunWith("transformers")).toContain(" --python /venv/bin/python --threads 4 --attn sdpa --strict");
  expect(begunWith("onnx")).toBe("forebay resume s3://bucket/name --model /models/m --threads 4");
});
