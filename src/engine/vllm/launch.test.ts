import { describe, expect, test } from "vitest";
import { vllmEngineCommand } from "./command.ts";
import { type LaunchOptions, launchArguments, vllmLayerIds } from "./launch.ts";
import { findServedModel } from "./served-model.ts";

const OPTIONS: LaunchOptions = {
  model: "/models/x",
  taps: [1, 16, 31, 46, 61, 63],
  blocks: 64,
  port: 8123,
  folder: "/dev/shm/forebay-vllm-1",
  dtype: "auto",
  forwardTokens: null,
  positions: 262_144,
  extra: [],
};

const jsonAfter = (args: string[], name: string) => JSON.parse(args[args.indexOf(name) + 1]!);

describe("launchArguments", () => {
  test("block k is asked for as id k+1, with the connector on and all that shortens states off", () => {
    const args = launchArguments(OPTIONS);
    expect(args.slice(0, 2)).toEqual(["serve", "/models/x"]);
    expect(jsonAfter(args, "--speculative_config")).toEqual({
      method: "extract_hidden_states",
      num_speculative_tokens: 1,
      draft_model_config: { hf_config: { eagle_aux_hidden_state_layer_ids: [2, 17, 32, 47, 62, 64] } },
    });
    expect(jsonAfter(args, "--kv_transfer_config")).toEqual({
      kv_connector: "ExampleHiddenStatesConnector",
      kv_role: "kv_producer",
      kv_connector_extra_config: { shared_storage_path: "/dev/shm/forebay-vllm-1" },
    });
    expect(args).toEqual(
      expect.arrayContaining(["--no-enable-chunked-prefill", "--no-enable-prefix-caching"]),
    );
  });

  test("a person's own connector replaces vLLM's, with the folder put in", () => {
    const own = '{"kv_connector":"Mine","kv_connector_extra_config":{"shared_storage_path":"{folder}"}}';
    const args = launchArguments({ ...OPTIONS, extra: ["--kv-transfer-config", own] });
    expect(args).not.toContain("--kv_transfer_config");
    expect(jsonAfter(args, "--kv-transfer-config").kv_connector_extra_config.shared_storage_path).toBe(
      OPTIONS.folder,
    );
  });

  // Without chunked prefill vLLM wants a batch that holds the longest prompt, and takes memory for all of it.
  test.each([
    ["the model's positions, where nothing else is said", [], 40_960],
    ["the longest prompt that a person wants", ["--max-model-len", "8192"], 16_384],
    ["the same, longer than a forward", ["--max_model_len=20000"], 20_000],
    ["the same in thousands", ["--max-model-len", "20k"], 20_000],
    ["the same in units of 1024", ["--max-model-len=20K"], 20_480],
    ["vLLM's own choice", ["--max-model-len", "auto"], 40_960],
  ])("a batch holds %s", (_, extra, expected) => {
    const args = launchArguments({ ...OPTIONS, forwardTokens: 16_384, positions: 40_960, extra });
    expect(args[args.indexOf("--max-num-batched-tokens") + 1]).toBe(String(expected));
  });

  test("a person's own --max-num-batched-tokens stands; vLLM's where no forward was asked for", () => {
    const extra = ["--max-num-batched-tokens", "9000"];
    const own = launchArguments({ ...OPTIONS, forwardTokens: 16_384, positions: null, extra });
    expect(own.filter((word) => word === "--max-num-batched-tokens")).toHaveLength(1);
    expect(launchArguments(OPTIONS)).not.toContain("--max-num-batched-tokens");
  });

  test.each([
    "--port=1",
    "--speculative-config",
    "--enable_prefix_caching",
    "--enable-chunked-prefill",
    "--host",
  ])("%s would undo what the states depend on, and is refused", (word) => {
    expect(() => launchArguments({ ...OPTIONS, extra: [word] })).toThrow(/set by Forebay itself/);
  });

  test("ids out of range, doubled or descending are refused before a server could die of them", () => {
    expect(() => vllmLayerIds([0, 6], 6)).toThrow(/tap 6 is out of range: the model has 6 blocks/);
    expect(() => vllmLayerIds([-1], 6)).toThrow(/out of range/);
    expect(() => vllmLayerIds([3, 1], 6)).toThrow(/must ascend, found 1 after 3/);
    expect(() => vllmLayerIds([3, 3], 6)).toThrow(/must ascend/);
  });
});

test("the allocator setting with which vLLM starts no connector is left out of its environment, others stay", () => {
  const target = { program: "vllm", extra: [] };
  const env = (conf: string) =>
    vllmEngineCommand({ target, env: { A: "1", PYTORCH_CUDA_ALLOC_CONF: conf } }).env;
  expect(env("expandable_segments:True")).toEqual({ A: "1" });
  expect(env("expandable_segments:True,max_split_size_mb:64").PYTORCH_CUDA_ALLOC_CONF).toBe(
    "max_split_size_mb:64",
  );
});

describe("findServedModel", () => {
  const served = (id: string, root: string | null = null) => ({ id, root, maxModelTokens: 512 });

  test.each([
    ["its path", "/models/x", served("/models/x")],
    ["its root's path", "/models/x", served("anything", "/models/x")],
    [
      "its hub id, from the cache's path",
      "/c/hub/models--Qwen--Qwen3-8B/snapshots/abc",
      served("Qwen/Qwen3-8B"),
    ],
    ["the last part of its name", "/models/Qwen3-8B", served("Qwen/Qwen3-8B")],
  ])("knows a model by %s", (_, directory, model) => {
    expect(findServedModel([served("other"), model], directory)).toBe(model);
  });

  test("another model is refused with both names", () => {
    expect(() => findServedModel([served("Qwen/Qwen3-4B")], "/models/Qwen3-8B")).toThrow(
      /serves Qwen\/Qwen3-4B, expected Qwen3-8B/,
    );
  });
});
