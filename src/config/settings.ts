import {
  amount,
  assignment,
  autoOrUploads,
  choice,
  duration,
  type Kind,
  layers,
  model,
  names,
  partOf,
  path,
  program,
  rowRange,
  share,
  size,
  text,
  url,
  whole,
  yesNo,
} from "./kinds.ts";

/** Verbs that take settings; `start` stands for the verbs that start a supervisor. */
const START = ["run", "resume", "restart"] as const;
const TAKES_DATASET = ["run", "plan", "tokenize"] as const;
const TOUCHES_STORE = [
  "run",
  "resume",
  "restart",
  "status",
  "logs",
  "stop",
  "set",
  "ls",
  "verify",
  "read",
  "doctor",
  "plan",
] as const;
/** Verbs that look for the run directory of a run on this machine. */
const FINDS_RUN = ["run", "resume", "restart", "status", "logs", "stop", "set"] as const;

export type Verb =
  | (typeof TAKES_DATASET | typeof TOUCHES_STORE | typeof FINDS_RUN)[number]
  | "check"
  | "taps";

interface Setting<T> {
  /** The flag without its dashes; also the key in run.yaml, and FOREBAY_... in the environment. */
  name: string;
  kind: Kind<unknown>;
  default: T;
  /** One line; says what the default means where it is null. */
  doc: string;
  group: string;
  verbs: readonly Verb[];
  /** May be given several times (a list in run.yaml, separated by commas in the environment). */
  many: boolean;
  /** An example for run.yaml where the default is null. */
  example?: string;
}

type Extra = { example?: string; verbs?: readonly Verb[] };

/** Builds the settings of one heading of --help and run.yaml. */
function heading(group: string, groupVerbs: readonly Verb[]) {
  const make = <T>(
    name: string,
    kind: Kind<unknown>,
    value: T,
    doc: string,
    extra: Extra,
    many: boolean,
  ) => ({
    name,
    kind,
    default: value,
    doc,
    group,
    verbs: extra.verbs ?? groupVerbs,
    many,
    example: extra.example,
  });
  return {
    one: <T>(name: string, kind: Kind<T>, value: NoInfer<T>, doc: string, extra: Extra = {}): Setting<T> =>
      make(name, kind, value, doc, extra, false),
    /** Unset is null. */
    maybe: <T>(name: string, kind: Kind<T>, doc: string, extra: Extra = {}): Setting<T | null> =>
      make<T | null>(name, kind, null, doc, extra, false),
    many: <T>(name: string, kind: Kind<T>, doc: string, extra: Extra = {}): Setting<T[]> =>
      make<T[]>(name, kind, [], doc, extra, true),
  };
}

const input = heading("Model and dataset", TAKES_DATASET);
const taps = heading("Taps", ["run", "plan", "check", "taps"]);
const engine = heading("Engine", [...START, "check"]);
const spool = heading("Spool", START);
const upload = heading("Upload", START);
const store = heading("Store", TOUCHES_STORE);
const control = heading("Control", START);
const output = heading("Output", START);

/** Every setting there is. A name here is the code's; the person's is `name`. */
export const SETTINGS = {
  model: input.maybe("model", model, "Hugging Face model directory", {
    verbs: [...TAKES_DATASET, "resume", "restart", "taps", "check", "doctor"],
    example: "models/Qwen3-8B",
  }),
  dataset: input.maybe("dataset", path, "save_to_disk directory, Parquet or JSONL of token ids", {
    verbs: ["run", "plan"],
    example: "data/train",
  }),
  split: input.maybe("split", text, "split of a DatasetDict", {
    verbs: ["run", "plan"],
    example: "train",
  }),
  limit: input.maybe("limit", whole(1), "take only the first N rows", { example: "1000" }),
  rows: input.maybe("rows", rowRange, "take only rows A (included) to B (not included)", {
    example: '"0:1000"',
  }),
  maxTokens: input.maybe("max-tokens", whole(1), "longest row taken whole; default: the model's positions", {
    example: "8192",
  }),
  long: input.one("long", choice("skip", "truncate"), "skip", "what to do with rows over --max-tokens"),
  order: input.one(
    "order",
    choice("shuffled", "longest-first"),
    "shuffled",
    "order of batches; shuffled makes any prefix of the run a fair sample",
    { verbs: ["run", "plan"] },
  ),
  seed: input.one("seed", whole(0, 2 ** 32 - 1), 0, "seed of the shuffle", { verbs: ["run", "plan"] }),
  packBytes: input.one("pack-bytes", size, 64 * 2 ** 20, "bound on the size of one pack", {
    verbs: ["run", "plan"],
  }),

  taps: taps.maybe("taps", layers, "blocks whose output is stored, ascending", { example: "1,3,5" }),
  tapsAs: taps.one(
    "taps-as",
    choice("forebay", "zlab", "hf", "vllm"),
    "forebay",
    "numbering that --taps is in; `forebay taps` prints them all",
  ),
  trainer: taps.maybe(
    "for",
    choice("speculators-dflash", "speculators-eagle3", "specforge-dflash", "zlab"),
    "trainer whose usual taps are taken, instead of --taps",
    { example: "speculators-dflash" },
  ),
  draftLayers: taps.maybe("layers", whole(1, 1024), "draft layers of --for, with DFlash; default: 5", {
    example: "5",
  }),

  engine: engine.one("engine", choice("onnx", "transformers", "vllm"), "onnx", "what runs the model", {
    verbs: [...START, "check", "doctor"],
  }),
  engines: engine.maybe("engines", whole(1, 256), "engine processes; default: one a device, else 1", {
    example: "2",
  }),
  devices: engine.maybe("devices", names, "GPUs to use, one engine each; default: all that are seen", {
    example: "0,1,2,3",
  }),
  python: engine.maybe("python", program, "Python of the transformers engine; default: venv, then python3", {
    verbs: [...START, "check", "doctor"],
    example: "python3",
  }),
  vllm: engine.many("vllm", url, "a running vLLM server; repeat for several", {
    verbs: [...START, "check", "doctor"],
    example: "[http://127.0.0.1:8000]",
  }),
  serve: engine.one(
    "serve",
    yesNo,
    false,
    "start a vLLM server for each device; its own arguments follow --",
  ),
  vllmArg: engine.many("vllm-arg", text, "argument for the servers of --serve; what follows -- is the same", {
    example: "[--max-model-len=8192]",
  }),
  engineEnv: engine.many("engine-env", assignment, "environment variable for the engines; repeatable", {
    example: "[OMP_NUM_THREADS=4]",
  }),
  threads: engine.maybe("threads", whole(1, 1024), "CPU threads of each engine; default: cores / engines", {
    example: "4",
  }),
  dtype: engine.one(
    "dtype",
    choice("auto", "float32", "bfloat16", "float16"),
    "auto",
    "what the engine computes in; states are always bf16",
  ),
  forwardTokens: engine.maybe(
    "forward-tokens",
    whole(1),
    "tokens of one forward pass; default: the engine's",
    {
      example: "8192",
    },
  ),
  engineTimeoutMs: engine.one(
    "engine-timeout",
    duration,
    60_000,
    "silence after which an engine is restarted, at least; its first forward has 15 times this, loading 30 times",
    { verbs: START },
  ),
  attn: engine.maybe("attn", text, "attention implementation of the transformers engine", {
    example: "sdpa",
  }),
  strict: engine.one("strict", yesNo, false, "forward passes of one exact length only (bitwise repeatable)"),
  allowSlowKernels: engine.one("allow-slow-kernels", yesNo, false, "accept reference kernels on a GPU"),
  against: engine.maybe(
    "against",
    choice("onnx", "transformers", "vllm"),
    "a second engine whose states for the same rows must agree",
    { verbs: ["check"], example: "onnx" },
  ),
  gate: engine.one(
    "gate",
    yesNo,
    true,
    "the check of the engine's states before the run; run.json says whether it was done",
    { verbs: START },
  ),
  maxSkips: engine.one("max-skips", share, 0.001, "share of rows that may be skipped at run time", {
    verbs: START,
  }),

  spool: spool.maybe("spool", path, "directory of the spool; default: spool/ in the run directory", {
    verbs: [...START, "doctor"],
    example: "/scratch/spool",
  }),
  spoolBytes: spool.one("spool-bytes", size, 16 * 2 ** 30, "disk that the spool may use, never exceeded", {
    verbs: [...START, "plan", "doctor"],
  }),
  diskFloorBytes: spool.one("disk-floor", size, 2 ** 30, "free disk that is always left"),

  uploads: upload.one("uploads", autoOrUploads, "auto", "connections to the store; auto finds the number", {
    verbs: START,
  }),
  inflightBytes: upload.maybe(
    "inflight-bytes",
    size,
    "bytes in memory on their way; default: an eighth of the memory",
    { example: "2GiB" },
  ),

  endpoint: store.maybe("endpoint", url, "S3-compatible endpoint; default: AWS", {
    example: "https://s3.example.com",
  }),
  region: store.maybe("region", text, "region; default: the SDK's own, else us-east-1", {
    example: "us-east-1",
  }),
  profile: store.maybe("profile", text, "profile of the shared credentials file", { example: "training" }),
  pathStyle: store.maybe("path-style", yesNo, "bucket in the path; default: yes for a custom endpoint", {
    example: "true",
  }),

  part: control.one("part", partOf, { index: 1, count: 1 }, "this machine's share of the plan", {
    verbs: FINDS_RUN,
  }),
  takeOver: control.one(
    "take-over",
    yesNo,
    false,
    "take a part over from a machine that is known to be gone",
  ),
  attach: control.many("attach", path, "file to store beside the run, e.g. the recipe; repeatable", {
    verbs: ["run", "resume"],
    example: "[recipe.yaml]",
  }),
  detach: control.one("detach", yesNo, false, "go on in the background, restarted if it dies", {
    verbs: ["run", "resume"],
  }),
  maxBlockedMs: control.maybe(
    "max-blocked",
    duration,
    "give up (exit 75) when blocked so long; default: never",
    {
      example: "30m",
    },
  ),
  stopDeadlineMs: control.one("stop-deadline", duration, 25_000, "time to flush the spool after a stop"),
  onExit: control.maybe("on-exit", text, "shell command at the end; gets FOREBAY_EXIT_CODE", {
    example: '"shutdown now"',
  }),
  heartbeatUrl: control.maybe("heartbeat-url", url, "URL asked each minute while all is well", {
    example: "https://hc.example.com/ping",
  }),
  runDir: control.maybe("run-dir", path, "run directory; default: in ~/.local/state/forebay", {
    verbs: FINDS_RUN,
    example: "/scratch/run",
  }),

  port: output.one("port", whole(0, 65_535), 8080, "port of the page; the next free one where it is taken"),
  pricePerHour: output.maybe("price-per-hour", amount, "price of this machine, to show money", {
    verbs: [...START, "plan"],
    example: "12.50",
  }),
  progress: output.one(
    "progress",
    choice("auto", "tty", "plain", "json", "quiet"),
    "auto",
    "how progress is shown on stderr",
  ),
};

type Settings = typeof SETTINGS;
export type SettingKey = keyof Settings;
export type SettingValues = { [K in SettingKey]: Settings[K]["default"] };

export const SETTING_KEYS = Object.keys(SETTINGS) as SettingKey[];

export function environmentName(name: string): string {
  return `FOREBAY_${name.toUpperCase().replaceAll("-", "_")}`;
}

/** The setting a person's name stands for, or undefined. */
export function settingKey(name: string): SettingKey | undefined {
  return SETTING_KEYS.find((key) => SETTINGS[key].name === name);
}

export function settingsOfVerb(verb: Verb): SettingKey[] {
  return SETTING_KEYS.filter((key) => SETTINGS[key].verbs.includes(verb));
}

/** A parsed value as a person would have written it; "-" where it is unset. */
export function showValue(key: SettingKey, value: unknown): string {
  if (value === null || value === undefined) return "-";
  const { kind, many } = SETTINGS[key];
  const show = (item: unknown) => kind.show?.(item) ?? String(item);
  if (!many) return show(value);
  return (value as unknown[]).length === 0 ? "-" : (value as unknown[]).map(show).join(",");
}
