import { EXIT, RunError } from "../base/errors.ts";
import { type Resolved, requireSetting, type Source } from "../config/resolve.ts";
import { toBlocks } from "../model/taps.ts";
import { tapsFor } from "../model/trainers.ts";

/** Weakest first. */
const SOURCES: readonly Source[] = ["default", "run.yaml", "environment", "flag"];

/** As `chosenTaps`; throws (usage) where neither is given. */
export function tapBlocks(settings: Resolved, blocks: number): number[] {
  requireTaps(settings);
  return chosenTaps(settings, blocks)!;
}

/** Throws (usage) where nothing says which taps are meant. Looks at no model. */
export function requireTaps(settings: Resolved): void {
  if (settings.values.trainer === null) requireSetting(settings, "taps");
}

/**
 * What --taps names or --for chooses, in Forebay's numbering; null: neither is given. Throws (usage) for taps that the
 * model does not have, and where both are given with equal weight.
 */
export function chosenTaps(settings: Resolved, blocks: number): number[] | null {
  const { taps, tapsAs, trainer, draftLayers } = settings.values;
  if (trainer !== null && (taps === null || isForStronger(settings))) {
    return tapsFor(trainer, { blocks, draftLayers });
  }
  return taps && toBlocks(taps, { blocks, as: tapsAs === "zlab" ? "forebay" : tapsAs });
}

/** As between any two values of one setting: a flag beats the environment, which beats run.yaml. */
function isForStronger({ sources }: Resolved): boolean {
  const difference = SOURCES.indexOf(sources.trainer) - SOURCES.indexOf(sources.taps);
  if (difference !== 0) return difference > 0;
  throw new RunError({
    op: "read settings",
    subject: "--taps and --for",
    message: "expected one of them, found both",
    hint: "--for chooses the taps itself; `forebay taps --for TRAINER` shows which",
    exit: EXIT.usage,
  });
}
