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
  /** Tokens of one batch, if the longest prompt is none longer; null: vLLM's own. */
  forwardTokens: number | null;
  /** The longest prompt of the model; null: it does not say. */
  positions: number | null;
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
  const { model, taps, blocks, port, folder, dtype } = options;
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
    ...batchArguments(options),
    ...extra,
  ];
}

/** Without chunked prefill a batch must hold the longest prompt, and vLLM takes memory for the whole of it. */
function batchArguments({ forwardTokens, positions, extra }: LaunchOptions): string[] {
  if (forwardTokens === null || has(extra, "max_num_batched_tokens")) return [];
  const longest = tokensOf(argumentOf(extra, "max_model_len")) ?? positions ?? 0;
  return ["--max-num-batched-tokens", String(Math.max(forwardTokens, longest))];
}

/** A number as vLLM takes it: k, m, g are thousands and their powers, K, M, G are 1,024. Null: none, or "auto". */
function tokensOf(text: string | null): number | null {
  const match = /^(\d+(?:\.\d+)?)([kmgKMG]?)$/.exec(text ?? "");
  if (!match) return null;
  const [, number, unit] = match;
  const power = " kmg".indexOf(unit!.toLowerCase() || " ");
  return Math.floor(Number(number) * (unit === unit!.toLowerCase() ? 1_000 : 1_024) ** power);
}

/** Arguments that would undo what the states depend on. */
function refuseOurs(extra: readonly string[]): void {
  const ours = ["host", "port", "served_model_name", "speculative_config", "api_key"];
  const found = [...ours, "enable_chunked_prefill", "enable_prefix_caching"].find((name) => has(extra, name));
  if (found) throw refused(`--${found.replaceAll("_", "-")} after -- is set by Forebay itself: leave it out`);
}

/** vLLM takes dashes and underscores alike. */
function has(words: readonly string[], name: string): boolean {
  return words.some((word) => nameOf(word) === name);
}

/** Of `--name value` or `--name=value`; the last one counts. */
function argumentOf(words: readonly string[], name: string): string | null {
  const at = words.findLastIndex((word) => nameOf(word) === name);
  const word = words[at];
  if (word === undefined) return null;
  return word.includes("=") ? word.slice(word.indexOf("=") + 1) : (words[at + 1] ?? null);
}

function nameOf(word: string): string | undefined {
  return /^--([\w-]+)/.exec(word)?.[1]?.replaceAll("-", "_");
}
