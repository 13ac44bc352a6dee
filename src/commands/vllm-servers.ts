import { describeError, EXIT, RunError } from "../base/errors.ts";
import { VllmClient } from "../engine/vllm/client.ts";

/**
 * Throws (exit 7) where none of the servers that were named serves: an engine would wait for one that is coming back.
 * Of several, one that is down is the fleet's to deal with.
 */
export async function needVllmServer(urls: readonly string[]): Promise<void> {
  const reasons = await Promise.all(urls.map(whyDown));
  const down = reasons.filter((reason) => reason !== null);
  if (urls.length === 0 || down.length < urls.length) return;
  throw new RunError({
    op: "reach vLLM",
    subject: urls.join(", "),
    message: down[0]!,
    safe: "nothing was started",
    hint: "start the server, correct --vllm, or let Forebay start one by --serve",
    exit: EXIT.engine,
  });
}

async function whyDown(url: string): Promise<string | null> {
  const client = new VllmClient(url);
  try {
    await client.needHealth();
    return null;
  } catch (error) {
    return describeError(error);
  } finally {
    client.close();
  }
}
