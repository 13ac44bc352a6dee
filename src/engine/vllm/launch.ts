import { refused } from "./failure.ts";

export interface LaunchOptions {
  /** Path of the model directory. */
  model: string;
  /** Forebay's blocks, ascending. */
  taps: readonly number[];
  blocks: number;
  port: number;
  /** Where the connector writes. */
  folder: string;
  dtype: "auto" | "float32" | "bfloat16" | "float16";
  /** Tokens of one batch; null: vLLM's own. */
  batchTokens: number | null;
  /** A person's own arguments, after `--`; "{folder}" in them stands for `folder`. */
  extra: readonly string[];
}

/** What the server of --serve calls the model. */
const SERVED_NAME = "forebay";

/**
 * The ids that vLLM calls `taps` by: id k+1 is the output of block k, before the final norm even for the last.
 * Checked here because vLLM does not: an id above the number of blocks starts a healthy server whose engine dies of
 * its first request, and any order comes back ascending.
 */
export function vllmLayerIds(taps: readonly number[], blocks: number): number[] {
  taps.forEach((tap, i) => {
    if (tap < 0 || tap >= blocks) throw refused(`tap ${tap} is out of range: the model has ${blocks} blocks`);
    if (i > 0 && tap <= taps[i - 1]!) throw refused(`taps must ascend, found ${tap} after ${taps[i - 1]}`);
  });
  return taps.map((tap) => tap + 1);
}

/** The arguments after the program's name: `vllm serve MODEL ...` with the hidden-states connector of vLLM >= 0.22. */
export function launchArguments(options: LaunchOptions): string[] {
  const { model, taps, blocks, port, folder, dtype, batchTokens } = options;
  const speculative = {
    method: "extract_hidden_states",
    num_speculative_tokens: 1,
    draft_model_config: { hf_config: { eagle_aux_hidden_state_layer_ids: vllmLayerIds(taps, blocks) } },
  };
  const transfer = {
    kv_connector: "ExampleHiddenStatesConnector",
    kv_role: "kv_producer",
    kv_connector_extra_config: { shared_storage_path: folder },
  };
  const extra = options.extra.map((word) => word.replaceAll("{folder}", folder));
  refuseOurs(extra);
  return [
    ...["serve", model, "--host", "127.0.0.1", "--port", String(port), "--served-model-name", SERVED_NAME],
    ...["--speculative_config", JSON.stringify(speculative)],
    // A connector of a person's own, as the one that a CPU needs, replaces vLLM's.
    ...(has(extra, "kv_transfer_config") ? [] : ["--kv_transfer_config", JSON.stringify(transfer)]),
    ...["--no-enable-chunked-prefill", "--no-enable-prefix-caching"],
    ...(dtype === "auto" ? [] : ["--dtype", dtype]),
    ...(batchTokens === null ? [] : ["--max-num-batched-tokens", String(batchTokens)]),
    ...extra,
  ];
}

/** Arguments that would undo what the states depend on. */
function refuseOurs(extra: readonly string[]): void {
  const ours = ["host", "port", "served_model_name", "speculative_config", "api_key"];
  const found = [...ours, "enable_chunked_prefill", "enable_prefix_caching"].find((name) => has(extra, name));
  if (found) throw refused(`--${found.replaceAll("_", "-")} after -- is set by Forebay itself: leave it out`);
}

/** vLLM takes dashes and underscores alike. */
function has(words: readonly string[], name: string): boolean {
  return words.some((word) => /^--([\w-]+)/.exec(word)?.[1]?.replaceAll("-", "_") === name);
}
