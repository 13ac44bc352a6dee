import { statfsSync } from "node:fs";
import { formatBytes } from "../base/bytes.ts";
import { describeError } from "../base/errors.ts";
import { VllmClient } from "../engine/vllm/client.ts";
import { findServedModel } from "../engine/vllm/served-model.ts";
import { SHARED_MEMORY } from "../engine/vllm/server.ts";
import { broken, type Finding, ok, weak } from "./doctor-checks.ts";

/** The states of 20,000 tokens at 50 KB each: below, vLLM's connector soon has no room to write. */
const ROOM_BYTES_MIN = 2 ** 30;

/** The vllm engine: where its connector writes, and each server that was named. Sends no prompt. */
export async function examineVllm(urls: readonly string[], model: string | null): Promise<Finding[]> {
  return [...examineSharedMemory(), ...(await Promise.all(urls.map((url) => examineServer(url, model))))];
}

function examineSharedMemory(): Finding[] {
  let bytes: number;
  try {
    const { blocks, bsize } = statfsSync(SHARED_MEMORY);
    bytes = blocks * bsize;
  } catch {
    // Not Linux, or no such mount: servers started here then use the temporary directory.
    return [];
  }
  const found = `vllm: ${SHARED_MEMORY}, where its connector writes, has ${formatBytes(bytes)}`;
  const fix = "only for --engine vllm: give the container more, docker run --shm-size=8g";
  const figures = { shm_bytes: bytes };
  return [bytes < ROOM_BYTES_MIN ? weak("engine", found, fix, figures) : ok("engine", found, figures)];
}

async function examineServer(url: string, model: string | null): Promise<Finding> {
  const client = new VllmClient(url);
  try {
    await client.needHealth();
    const models = await client.models();
    const served = model === null ? models[0]! : findServedModel(models, model);
    const limit = served.maxModelTokens === null ? "" : `, prompts up to ${served.maxModelTokens - 1} tokens`;
    return ok(
      "engine",
      `vllm: ${(await client.version()) ?? "version unknown"} at ${url} serves ${served.id}${limit}`,
    );
  } catch (error) {
    return broken("engine", `vllm: ${describeError(error)}`, `start the server, or correct --vllm ${url}`);
  } finally {
    client.close();
  }
}
