import { EXIT, RunError } from "../base/errors.ts";
import { dflashTaps, eagle3Taps } from "./taps.ts";

/** What trains a drafter from a run, and what it must find there. All that Forebay knows of them stands in this file. */
export const TRAINERS = ["speculators-dflash", "speculators-eagle3", "specforge-dflash", "zlab"] as const;
export type Trainer = (typeof TRAINERS)[number];

/** Whether a trainer can use a run; also its form in JSON. */
export interface TrainerUse {
  trainer: Trainer;
  ok: boolean;
  /** The blocks whose outputs its drafter gets as features, ascending. */
  features: number[];
  /** How it is told which they are, in its own words and numbering; null where it cannot use the run. */
  setting: string | null;
  /** Why it cannot use the run; null where it can. */
  reason: string | null;
}

interface Needs {
  /** The features that its algorithm takes unless told otherwise. Throws where the model has too few blocks. */
  features: (blocks: number, draftLayers: number) => number[];
  /** Whether it also takes the last block's output, before the final norm, in a slot after the features. */
  lastState: boolean;
  setting: (features: readonly number[]) => string;
}

/** Draft layers of the drafters that DFlash's authors publish. */
export const DRAFT_LAYERS = 5;

/**
 * Each takes any number of features, as wide as its drafter is made for them: the names stand for what the algorithm's
 * authors chose.
 */
const NEEDS: Record<Trainer, Needs> = {
  // speculators 0.9.0, train/data.py: features are hidden_states[:, :-1], what the drafter is to predict is made of
  // hidden_states[:, -1]. Told of no layers it takes EAGLE-3's, also for DFlash (models/utils.py). EAGLE-3's
  // drafter is as wide as it is told of features (models/eagle3/core.py, num_aux); its authors' are three.
  "speculators-dflash": { features: dflashTaps, lastState: true, setting: targetLayerIds },
  "speculators-eagle3": { features: eagle3Taps, lastState: true, setting: targetLayerIds },
  // SpecForge, modeling/draft/dflash.py, and z-lab/dflash, model.py: the loss is of token ids, so that the last state is
  // not needed. As a feature it would be wrong: both read it from Hugging Face, which shows it after the final norm.
  "specforge-dflash": { features: dflashTaps, lastState: false, setting: dflashConfig },
  zlab: { features: dflashTaps, lastState: false, setting: dflashConfig },
};

/**
 * Taps, ascending, with which `trainer` can use the run. `draftLayers` is DFlash's, 5 unless told. Throws a usage error
 * where the model has too few blocks, and for draft layers of EAGLE-3, whose own choice is three features.
 */
export function tapsFor(
  trainer: Trainer,
  { blocks, draftLayers }: { blocks: number; draftLayers: number | null },
): number[] {
  const { features, lastState } = NEEDS[trainer];
  if (features === eagle3Taps && draftLayers !== null) {
    throw unsuited(
      trainer,
      `it takes no --layers, found ${draftLayers}: EAGLE-3 has three features unless --taps names others`,
    );
  }
  const chosen = orNull(() => features(blocks, draftLayers ?? DRAFT_LAYERS));
  const last = blocks - 1;
  if (chosen === null || chosen.includes(last)) {
    throw unsuited(trainer, `expected a model with more blocks for its features, found ${blocks} blocks`);
  }
  return lastState ? [...chosen, last] : chosen;
}

/** What each trainer can make of a run with these taps, as run.json's numbering has them. */
export function trainerUses(taps: { blocks: readonly number[]; lastState: boolean }): TrainerUse[] {
  return TRAINERS.map((trainer) => trainerUse(trainer, taps));
}

export function trainerUse(
  trainer: Trainer,
  { blocks, lastState }: { blocks: readonly number[]; lastState: boolean },
): TrainerUse {
  const needs = NEEDS[trainer];
  const features = lastState ? blocks.slice(0, -1) : [...blocks];
  const reason = reasonAgainst(needs, { features, lastState });
  const ok = reason === null;
  return { trainer, ok, features, setting: ok ? needs.setting(features) : null, reason };
}

/** One line a trainer, for a person. */
export function describeTrainerUses(uses: readonly TrainerUse[]): string[] {
  const nameChars = Math.max(...TRAINERS.map((trainer) => trainer.length));
  return uses.map(({ trainer, ok, setting, reason }) => {
    return `${trainer.padEnd(nameChars)}  ${ok ? `yes: ${setting}` : `no: ${reason}`}`;
  });
}

function reasonAgainst(needs: Needs, taps: { features: number[]; lastState: boolean }): string | null {
  if (needs.lastState && !taps.lastState) return "it needs the last block's output, which is not tapped";
  return taps.features.length > 0 ? null : "it needs outputs of blocks before the last, and none is tapped";
}

/** speculators counts as vLLM does, and is not told of the last slot. */
function targetLayerIds(features: readonly number[]): string {
  return `--target-layer-ids ${features.map((block) => block + 1).join(" ")}`;
}

/** In the drafter's config.json. */
function dflashConfig(features: readonly number[]): string {
  return `"dflash_config": {"target_layer_ids": [${features.join(", ")}]}`;
}

function orNull(make: () => number[]): number[] | null {
  try {
    return make();
  } catch {
    // It says so of taps that nobody wrote; our own error says it of the trainer.
    return null;
  }
}

function unsuited(trainer: Trainer, message: string): RunError {
  return new RunError({
    op: "choose taps",
    subject: `--for ${trainer}`,
    message,
    hint: "name the blocks yourself (--taps), or give another --layers",
    exit: EXIT.usage,
  });
}
