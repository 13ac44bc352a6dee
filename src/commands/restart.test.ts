import { expect, test } from "vitest";
import { resolveSettings, type SettingTexts } from "../config/resolve.ts";
import type { LaunchRecord } from "../control/run-directory.ts";
import { refuseMisuse } from "./engine-commands.ts";
import { type EngineName, refuseForeignFlags } from "./engine-flags.ts";
import { launchOf, settingsOfLaunch } from "./launch.ts";
import { withChanges } from "./restart.ts";

const URL = "http://127.0.0.1:8000";

/** The settings that a run begun with `begun` goes on with after `restart` with `asked`. */
function restarted(
  begun: SettingTexts,
  asked: SettingTexts,
  { env = {}, atWork = null }: { env?: Record<string, string>; atWork?: EngineName | null } = {},
) {
  const resolve = (verb: "run" | "restart", flags: SettingTexts, from = {}) =>
    resolveSettings({ verb, flags, env: from, file: null, directory: "/home/me" });
  const before: LaunchRecord = {
    generation: 1,
    verb: "run",
    address: "file:/runs/a",
    directory: "/home/me",
    settings: launchOf(resolve("run", begun, env)),
    onExit: null,
  };
  const { launch, changed } = withChanges(before, resolve("restart", asked), atWork);
  const settings = settingsOfLaunch(launch);
  return { changed, settings, texts: launch.settings };
}

test.each<[string, SettingTexts, SettingTexts]>([
  ["transformers, to a server that runs", { python: "p", devices: "0", attn: "sdpa" }, { vllm: URL }],
  ["transformers, to servers started here", { threads: "2", strict: "true" }, { serve: "true" }],
  ["servers started here, to one that runs", { engine: "vllm", serve: "true", python: "p" }, { vllm: URL }],
  ["a server that runs, to ones started here", { engine: "vllm", vllm: [URL] }, { serve: "true" }],
])("what was only for the former engine is left behind: %s", (_way, begun, asked) => {
  const { settings } = restarted({ engine: "transformers", ...begun }, { engine: "vllm", ...asked });
  expect(() => refuseForeignFlags(settings, ["vllm"])).not.toThrow();
  expect(() => refuseMisuse(settings.values)).not.toThrow();
});

test("a server's arguments and Python are left behind without a word of the engine too", () => {
  const begun = { engine: "vllm", serve: "true", python: "p", "vllm-arg": ["--max-model-len=9"] };
  const { settings, changed } = restarted(begun, { vllm: URL });
  expect(() => refuseForeignFlags(settings, ["vllm"])).not.toThrow();
  expect(() => refuseMisuse(settings.values)).not.toThrow();
  expect(changed).toEqual(expect.arrayContaining(["python: p -> its default", "serve: true -> its default"]));
});

test("what this very command asks for stays, to be refused", () => {
  const asked = { engine: "vllm", vllm: URL, devices: "0" };
  const { settings } = restarted({ engine: "transformers" }, asked);
  expect(() => refuseForeignFlags(settings, ["vllm"])).toThrow("--devices is for servers");
  const { settings: other } = restarted({ engine: "onnx" }, { attn: "sdpa" });
  expect(() => refuseForeignFlags(other, ["onnx"])).toThrow("--attn is for the engine transformers");
});

test("what the environment said for another engine stays: it is that engine's again one day", () => {
  const { texts, changed } = restarted({}, { engine: "onnx" }, { env: { FOREBAY_PYTHON: "p" } });
  expect(texts.python).toEqual({ text: "p", source: "environment" });
  expect(changed).toEqual(["engine: its default -> onnx"]);
});

test("where neither launch nor command names the engine, the one at work decides", () => {
  const begun = { threads: "2", vllm: URL };
  expect(Object.keys(restarted(begun, { engines: "2" }, { atWork: "vllm" }).texts)).not.toContain("threads");
  expect(Object.keys(restarted(begun, { engines: "2" }).texts)).toContain("threads");
});
