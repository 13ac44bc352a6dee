/** What engines need, by the beginning of its name; everything else stays with the supervisor. */
const PASSED_PREFIXES = [
  "PATH",
  "HOME",
  "USER",
  "LANG",
  "LC_",
  "TMPDIR",
  "XDG_",
  "LD_",
  "CUDA_",
  "NVIDIA_",
  "NCCL_",
  "PYTORCH_",
  "TORCH",
  "TRITON_",
  "HF_",
  "OMP_",
  "MKL_",
  "VLLM_",
  "VIRTUAL_ENV",
  "CONDA_",
  "CC",
  "CXX",
];

const SECRET = /TOKEN|SECRET|PASSWORD|CREDENTIAL|_KEY|^AWS_/i;
/** The one setting that a secret's pattern would catch, and that we set ourselves. */
const NOT_SECRET = new Set(["TOKENIZERS_PARALLELISM"]);

export interface EnvironmentOptions {
  /** `--engine-env K=V`: wins over everything but the rule on secrets. */
  extra?: Readonly<Record<string, string>>;
  /** UUID (or index) of the one device the child may see; null: it sees all of them. */
  device?: string | null;
  /** False only where a model named by its hub id is to be fetched. Default true. */
  hubOffline?: boolean;
}

/**
 * The whole environment of an engine's child. No variable whose name looks like a secret's is in it, not even one
 * given in `extra` (`refusedEngineEnv` names those beforehand, so that a person hears of it).
 */
export function engineEnvironment(
  parent: Readonly<Record<string, string | undefined>>,
  options: EnvironmentOptions = {},
): Record<string, string> {
  const env: Record<string, string> = {};
  for (const [name, value] of Object.entries(parent)) {
    if (value !== undefined && !isSecretName(name) && isPassed(name)) env[name] = value;
  }
  env.PYTORCH_CUDA_ALLOC_CONF ??= "expandable_segments:True";
  env.PYTHONUNBUFFERED = "1";
  env.TOKENIZERS_PARALLELISM = "false";
  if (options.hubOffline ?? true) env.HF_HUB_OFFLINE = "1";
  else delete env.HF_HUB_OFFLINE;
  if (options.device != null) env.CUDA_VISIBLE_DEVICES = options.device;
  for (const [name, value] of Object.entries(options.extra ?? {})) {
    if (!isSecretName(name)) env[name] = value;
  }
  return env;
}

/** The names in `--engine-env` that an engine is never given. */
export function refusedEngineEnv(extra: Readonly<Record<string, string>>): string[] {
  return Object.keys(extra).filter(isSecretName);
}

function isSecretName(name: string): boolean {
  return SECRET.test(name) && !NOT_SECRET.has(name);
}

function isPassed(name: string): boolean {
  return PASSED_PREFIXES.some((prefix) => name.startsWith(prefix));
}
