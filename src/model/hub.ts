import { existsSync, readdirSync, readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";
import { EXIT, RunError } from "../base/errors.ts";

/** A repository on the Hugging Face hub: "Qwen/Qwen3-8B". */
const HUB_ID = /^[A-Za-z0-9][\w.-]{0,95}\/[A-Za-z0-9][\w.-]{0,95}$/;

/**
 * The model directory that `given` means: itself where it exists, else, where it looks like a hub id, that model in
 * the Hugging Face cache of `env`. Nothing is downloaded: throws (configuration) with the command that does it.
 * A name that is neither is given back as it is, for whoever reads the directory to refuse.
 */
export function resolveModel(given: string, env: Readonly<Record<string, string | undefined>>): string {
  if (existsSync(given) || !HUB_ID.test(given)) return given;
  const cache = hubCache(env);
  const snapshot = newestSnapshot(join(cache, `models--${given.replace("/", "--")}`));
  if (snapshot && existsSync(join(snapshot, "config.json"))) return snapshot;
  throw new RunError({
    op: "find model",
    subject: given,
    message: `there is no such directory, and the Hugging Face cache ${cache} does not hold a model of this name`,
    safe: "nothing was started",
    hint: `hf download ${given}`,
    exit: EXIT.configuration,
  });
}

/** Where huggingface_hub keeps models. */
function hubCache(env: Readonly<Record<string, string | undefined>>): string {
  if (env.HF_HUB_CACHE) return env.HF_HUB_CACHE;
  const home =
    env.HF_HOME ?? join(env.XDG_CACHE_HOME ?? join(env.HOME ?? homedir(), ".cache"), "huggingface");
  return join(home, "hub");
}

/** The snapshot that `main` points to; where only another revision was fetched, that one. */
function newestSnapshot(repository: string): string | null {
  const snapshots = join(repository, "snapshots");
  const main = join(repository, "refs/main");
  if (existsSync(main)) return join(snapshots, readFileSync(main, "utf8").trim());
  const found = existsSync(snapshots) ? readdirSync(snapshots) : [];
  return found.length === 1 ? join(snapshots, found[0]!) : null;
}
