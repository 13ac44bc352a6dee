import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { EXIT, RunError } from "../base/errors.ts";
import { editDistance, nearestName } from "./nearest.ts";
import { requireSetting, resolveSettings, type SettingTexts } from "./resolve.ts";
import { parseRunYaml, readRunYaml, writeRunYaml } from "./run-yaml.ts";
import { environmentName, SETTING_KEYS, SETTINGS, settingsOfVerb, showValue } from "./settings.ts";

function resolve(
  flags: SettingTexts,
  env: Record<string, string> = {},
  yaml: string | null = null,
  verb: "run" | "verify" = "run",
) {
  const file = yaml === null ? null : parseRunYaml(yaml, "run.yaml", "/from/yaml");
  return resolveSettings({ verb, flags, env, file, directory: "/from/cwd" });
}

/** The RunError that `call` throws; fails where it throws none. */
function refusal(call: () => unknown): RunError {
  try {
    call();
  } catch (error) {
    expect(error).toBeInstanceOf(RunError);
    return error as RunError;
  }
  throw new Error("nothing was refused");
}

describe("where a value comes from", () => {
  test("run.yaml beats the default, the environment beats run.yaml, a flag beats all", () => {
    const yaml = "spool-bytes: 1GiB\npack-bytes: 2MiB\nseed: 3\n";
    const env = { FOREBAY_PACK_BYTES: "4MiB", FOREBAY_SEED: "5" };
    const { values, sources } = resolve({ seed: "7" }, env, yaml);
    expect(values.spoolBytes).toBe(2 ** 30);
    expect(values.packBytes).toBe(4 * 2 ** 20);
    expect(values.seed).toBe(7);
    expect(values.diskFloorBytes).toBe(2 ** 30);
    expect([sources.spoolBytes, sources.packBytes, sources.seed, sources.diskFloorBytes]).toEqual([
      "run.yaml",
      "environment",
      "flag",
      "default",
    ]);
  });

  test("paths count from the file for run.yaml and from the working directory for flags", () => {
    const { values } = resolve({ model: "m" }, { FOREBAY_SPOOL: "s" }, "dataset: d\nattach: [a, /b]\n");
    expect(values.model).toBe("/from/cwd/m");
    expect(values.spool).toBe("/from/cwd/s");
    expect(values.dataset).toBe("/from/yaml/d");
    expect(values.attach).toEqual(["/from/yaml/a", "/b"]);
  });

  test("what was written resolves to the same values in another working directory", () => {
    const flags = {
      model: "m",
      taps: "1,3",
      "engine-env": ["A=1", "B=x=y"],
      "max-blocked": "1h30m",
      gate: "false",
    };
    const first = resolve(flags, { FOREBAY_SPOOL: "s" }, "attach: [a]\npart: 2/4\n");
    const again = resolveSettings({
      verb: "run",
      flags: first.written,
      env: {},
      file: null,
      directory: "/elsewhere",
    });
    expect(again.values).toEqual(first.values);
    expect(first.values.maxBlockedMs).toBe(5_400_000);
    expect(first.values.engineEnv).toEqual([
      ["A", "1"],
      ["B", "x=y"],
    ]);
    expect(first.values.gate).toBe(false);
  });

  test("a verb ignores settings of other verbs in the environment and in run.yaml", () => {
    const { values, sources } = resolve({}, { FOREBAY_TAPS: "not even taps" }, "seed: 9\n", "verify");
    expect([values.taps, values.seed, sources.seed]).toEqual([null, 0, "default"]);
  });

  test("a setting that is needed and missing says how to give it", () => {
    const error = refusal(() => requireSetting(resolve({}), "taps"));
    expect(error.exit).toBe(EXIT.usage);
    expect(error.hint).toContain("--taps");
  });
});

describe("bad values", () => {
  const bad: [flag: string, text: string, says: RegExp][] = [
    ["spool-bytes", "200 GiBB", /expected a size such as 200GiB/],
    ["spool-bytes", "-1GiB", /expected a size/],
    ["max-blocked", "30", /expected a duration such as 25s, 30m/],
    ["max-blocked", "30 minutes", /expected a duration/],
    ["engines", "0", /whole number from 1/],
    ["engines", "two", /whole number/],
    ["uploads", "2000", /auto, or a whole number from 1 to 1000/],
    ["taps", "3,1", /ascending/],
    ["taps", "1,1,3", /each once/],
    ["taps", "-1,3", /layer numbers/],
    ["taps", "", /layer numbers/],
    ["rows", "9:3", /range of rows/],
    ["part", "0/4", /counted from 1/],
    ["part", "5/4", /counted from 1/],
    ["order", "shufled", /one of shuffled, longest-first/],
    ["engine", "tensorrt", /one of onnx, transformers, vllm/],
    ["max-skips", "110%", /share such as 0.1%/],
    ["heartbeat-url", "file:///etc/passwd", /http/],
    ["engine-env", "=x", /assignment/],
    ["gate", "maybe", /true or false/],
    ["port", "70000", /whole number from 0 to 65535/],
    ["seed", "4294967296", /whole number/],
  ];
  test.each(bad)("--%s %j is refused, saying what is expected", (flag, text, says) => {
    const error = refusal(() => resolve({ [flag]: text }));
    expect(error.message).toMatch(says);
    expect(error.subject).toBe(`--${flag}`);
    expect(error.exit).toBe(EXIT.usage);
  });

  test("unordered taps come with the ordered list to use", () => {
    expect(refusal(() => resolve({ taps: "5,1,3,3" })).hint).toContain("--taps 1,3,5");
  });

  test("a bad value in the environment or the file is a configuration error that names the place", () => {
    const fromEnv = refusal(() => resolve({}, { FOREBAY_SPOOL_BYTES: "lots" }));
    expect([fromEnv.subject, fromEnv.exit]).toEqual(["FOREBAY_SPOOL_BYTES", EXIT.configuration]);
    const fromFile = refusal(() => resolve({}, {}, "seed: 1\nspool-bytes: lots\n"));
    expect([fromFile.subject, fromFile.exit]).toEqual(["run.yaml:2: spool-bytes", EXIT.configuration]);
  });

  test("a flag given twice is refused where it has one meaning, and kept where it may repeat", () => {
    expect(refusal(() => resolve({ seed: ["1", "2"] })).message).toMatch(/2 times/);
    expect(resolve({ attach: ["/a", "/b"] }).values.attach).toEqual(["/a", "/b"]);
  });

  test("a mistyped FOREBAY_ variable is refused with the right one; a stranger's is ignored", () => {
    const error = refusal(() => resolve({}, { FOREBAY_SPOOL_BYTE: "1GiB" }));
    expect(error.hint).toContain("FOREBAY_SPOOL_BYTES");
    expect(() => resolve({}, { FOREBAY_EXIT_CODE: "0", FOREBAY_KUBERNETES_POD: "x" })).not.toThrow();
  });
});

describe("run.yaml", () => {
  test("an unknown key is refused with its line and the nearest known one", () => {
    const error = refusal(() => parseRunYaml("seed: 1\nspool_byte: 1GiB\n", "run.yaml", "/"));
    expect(error.subject).toBe("run.yaml:2");
    expect(error.hint).toContain("spool-bytes");
    expect(error.exit).toBe(EXIT.configuration);
  });

  test.each(["aws_secret_access_key", "password", "hf_token", "access_key", "accessKeyId"])(
    "a file that holds %s is refused as holding a secret",
    (name) => {
      const error = refusal(() => parseRunYaml(`${name}: abc\n`, "run.yaml", "/"));
      expect(error.message).toContain("secret");
      expect(error.message).not.toContain("abc");
    },
  );

  test("a key that stands twice, broken YAML, nesting and aliases to nothing are refused with a line", () => {
    expect(refusal(() => parseRunYaml("seed: 1\nseed: 2\n", "f", "/")).subject).toBe("f:2");
    expect(refusal(() => parseRunYaml("seed: [1\n", "f", "/")).message).toMatch(/YAML/);
    expect(refusal(() => parseRunYaml("seed:\n  deep: 1\n", "f", "/")).message).toMatch(
      /one value or a list/,
    );
    expect(refusal(() => parseRunYaml("- seed\n", "f", "/")).message).toMatch(/settings such as/);
    expect(refusal(() => parseRunYaml("seed: *nothing\n", "f", "/")).subject).toBe("f:1");
  });

  test("lists and plain text mean the same", () => {
    const list = resolve({}, {}, "taps: [1, 3, 5]\ndevices: [0, 1]\n").values;
    const text = resolve({}, {}, 'taps: 1,3,5\ndevices: "0,1"\n').values;
    expect(list).toEqual(text);
    expect(list.taps).toEqual([1, 3, 5]);
  });

  test("numbers are read as they are written, not as YAML would", () => {
    expect(refusal(() => resolve({}, {}, "seed: 0x10\n")).message).toContain('"0x10"');
    expect(refusal(() => resolve({}, {}, "seed: 1.5\n")).message).toContain('"1.5"');
  });

  test("an empty file is no settings, and a missing one says how to make it", () => {
    expect(parseRunYaml("# nothing\n", "f", "/").texts).toEqual({});
    const error = refusal(() => readRunYaml("/nowhere/run.yaml"));
    expect([error.exit, error.hint]).toEqual([EXIT.configuration, "forebay init writes one"]);
  });

  test("the file that init writes is read back as it was meant, and names every setting of run", () => {
    const texts = {
      taps: "1,3",
      "spool-bytes": "200GiB",
      attach: ["/a b", "/c"],
      "on-exit": "echo: done # not",
    };
    const path = join(mkdtempSync(join(tmpdir(), "forebay-config-")), "run.yaml");
    writeFileSync(path, writeRunYaml("s3://bucket/name", texts));
    const back = readRunYaml(path);
    expect(back.address).toBe("s3://bucket/name");
    expect(back.texts).toEqual(texts);
    const written = readFileSync(path, "utf8");
    for (const key of settingsOfVerb("run")) expect(written).toContain(`${SETTINGS[key].name}:`);
  });

  test("every commented example in that file parses when it is uncommented", () => {
    const uncommented = writeRunYaml("file:a/b", {}).replaceAll(/^# ([a-z-]+: )/gm, "$1");
    const resolved = resolve({}, {}, uncommented);
    for (const key of settingsOfVerb("run")) expect(resolved.sources[key]).toBe("run.yaml");
    expect(resolved.values.spoolBytes).toBe(SETTINGS.spoolBytes.default);
    expect(resolved.values.stopDeadlineMs).toBe(25_000);
  });
});

describe("the schema", () => {
  test("names, variables and keys are unique, and no setting can hold a secret", () => {
    const names = SETTING_KEYS.map((key) => SETTINGS[key].name);
    expect(new Set(names).size).toBe(names.length);
    expect(new Set(names.map(environmentName)).size).toBe(names.length);
    for (const name of names) expect(name).not.toMatch(/secret|password|access-key|credential/);
  });

  test("each default is shown in a form that parses to it", () => {
    for (const key of SETTING_KEYS) {
      const { kind, default: value, many } = SETTINGS[key];
      if (value === null || many) continue;
      expect(kind.parse(showValue(key, value), key, "/")).toEqual(value);
    }
  });
});

describe("the nearest name", () => {
  test("one slip of the hand is found; a different word is not", () => {
    const known = ["spool-bytes", "pack-bytes", "spool", "seed"];
    expect(nearestName("spool-byets", known)).toBe("spool-bytes");
    expect(nearestName("sede", known)).toBe("seed");
    expect(nearestName("pack_bytes", known)).toBe("pack-bytes");
    expect(nearestName("temperature", known)).toBeNull();
    expect(nearestName("", known)).toBeNull();
  });

  test("distance counts insertions, deletions, replacements and swaps", () => {
    expect(editDistance("", "abc")).toBe(3);
    expect(editDistance("abc", "abc")).toBe(0);
    expect(editDistance("abc", "acb")).toBe(1);
    expect(editDistance("kitten", "sitting")).toBe(3);
  });
});
