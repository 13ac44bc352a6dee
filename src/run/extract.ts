import { describeError, type ExitCode } from "../base/errors.ts";
import type { ExtractOptions, ExtractTools } from "./options.ts";
import type { StatusDocument } from "./status.ts";
import { Supervisor } from "./supervisor.ts";

export interface ExtractResult {
  exit: ExitCode;
  reason: string | null;
  document: StatusDocument;
}

/**
 * One extraction from start to finish, resuming whatever the store holds of it. Returns with the exit code where it
 * ended as planned (done, done with skips, stopped); throws RunError for everything that a person must look at,
 * after the engines have exited and the spool is let go. Packs in ready/ stay there in every case.
 */
export async function extract(options: ExtractOptions, tools: ExtractTools): Promise<ExtractResult> {
  const supervisor = new Supervisor(options, tools);
  let isBlind = false;
  const ticking = setInterval(() => {
    supervisor.look();
    try {
      tools.board.look();
      const document = tools.board.snapshot();
      supervisor.shown(document.run.state);
      tools.onTick?.(document);
    } catch (error) {
      // A fault of who only looks must not become the run's.
      if (!isBlind) tools.log.error("status.failed", { error: describeError(error) });
      isBlind = true;
    }
  }, 1_000);
  try {
    const { exit, reason } = await supervisor.run();
    return { exit, reason, document: tools.board.snapshot() };
  } finally {
    clearInterval(ticking);
    tools.onTick?.(tools.board.snapshot());
  }
}
