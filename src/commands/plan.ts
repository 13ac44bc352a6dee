import { createHash } from "node:crypto";
import { join } from "node:path";
import { parseBytes } from "../base/bytes.ts";
import { EXIT, RunError } from "../base/errors.ts";
import { silentLog } from "../base/log.ts";
import { amount, whole } from "../config/kinds.ts";
import { requireSetting } from "../config/resolve.ts";
import { readModelConfig } from "../model/config.ts";
import { tapsMetadata } from "../model/taps.ts";
import { trainerUses } from "../model/trainers.ts";
import { makePlan } from "../plan/plan.ts";
import { planReport, planReportJson, renderPlanReport } from "../plan/report.ts";
import { rowsOfDataset } from "../run/inputs.ts";
import { numberingOf, packShapeOf } from "../run/prepare.ts";
import { tapBlocks } from "./chosen-taps.ts";
import { datasetChoice } from "./extract-options.ts";
import { printJson, printLine } from "./io.ts";
import { countText } from "./progress-lines.ts";
import { runPlace, stateHome } from "./run-place.ts";
import type { Call, VerbSpec } from "./verb.ts";

export const plan: VerbSpec = {
  name: "plan",
  settings: "plan",
  summary: "rows, tokens, bytes, requests, hours and money of a run, before anything is rented",
  arguments: [["[address]", "the run, to share its cached rows"]],
  options: [
    ["--uplink <rate>", "the line's rate, e.g. 1Gb/s or 125MB/s"],
    ["--gpus <n>", "GPUs (default: 1)"],
    ["--gpu-tokens <n>", "tokens/s that one GPU computes"],
    ["--storage-price <price>", "price of a TB a month in the store"],
    ["--egress-price <price>", "price of reading back a TB"],
    ["--currency <sign>", 'sign before each amount (default: "$")'],
  ],
  examples: [
    "forebay plan --model models/Qwen3-8B --dataset data/train --taps 1,17,33",
    "forebay plan --model DIR --dataset DIR --for speculators-dflash --uplink 1Gb/s --gpus 8 --gpu-tokens 8000 --price-per-hour 16",
  ],
  async run(call) {
    const { io, options, settings, json } = call;
    const { values } = settings;
    const model = readModelConfig(requireSetting(settings, "model"));
    const taps = tapBlocks(settings, model.blocks);
    const numbering = numberingOf(taps, model.blocks);
    const rows = await rowsOfDataset(datasetChoice(settings), {
      directory: rowsDirectory(call),
      log: silentLog,
      onProgress: progressOf(call),
      signal: io.signal,
    });
    const made = makePlan(
      { lengths: rows.lengths(), firstRow: rows.info.firstRow, subject: values.dataset ?? undefined },
      {
        shape: packShapeOf(numbering, model, rows.info.hasMask),
        packBytesMax: values.packBytes,
        order: values.order,
        seed: values.seed,
        maxTokens: values.maxTokens,
        long: values.long,
        positions: model.positions,
      },
    );
    rows.close();
    const price = (name: string, flag: string) =>
      options[name] === undefined ? null : amount.parse(String(options[name]), flag, "");
    const report = planReport(made, trainerUses(tapsMetadata(taps, model.blocks)), {
      spoolBytes: values.spoolBytes,
      uplinkBytesPerS: options.uplink === undefined ? null : parseRate(String(options.uplink)),
      gpuTokensPerS: price("gpuTokens", "--gpu-tokens"),
      gpus: options.gpus === undefined ? 1 : whole(1).parse(String(options.gpus), "--gpus", ""),
      pricePerHour: values.pricePerHour,
      storagePricePerTbMonth: price("storagePrice", "--storage-price"),
      egressPricePerTb: price("egressPrice", "--egress-price"),
      currency: (options.currency as string | undefined) ?? "$",
    });
    if (json) printJson(io, planReportJson(report));
    else printLine(io, renderPlanReport(report));
    return EXIT.done;
  },
};

/** The run's own directory, so that `run` need not read the dataset again; else one for this dataset. */
function rowsDirectory(call: Call): string {
  if (call.address !== null) return join(runPlace(call).directory, "inputs");
  const dataset = requireSetting(call.settings, "dataset");
  const hash = createHash("sha256").update(dataset).digest("hex").slice(0, 8);
  return join(stateHome(call.io.env), "forebay", `rows-${hash}`);
}

function progressOf({ io }: Call): ((progress: { rows: number }) => void) | undefined {
  if (!io.stderrIsTty) return undefined;
  return ({ rows }) => io.stderr(`\rreading the dataset: ${countText(rows)} rows\u001b[K`);
}

/** "1Gb/s", "10Gbit/s" or "125MB/s" in bytes a second: a small b is bits. */
function parseRate(text: string): number {
  const match = /^\s*([\d.]+)\s*([kMGT]?)(b|bit|bps|B)(?:\/s|ps)?\s*$/.exec(text);
  if (!match) {
    throw new RunError({
      op: "read setting",
      subject: "--uplink",
      message: `expected a rate such as 1Gb/s or 125MB/s, found "${text}"`,
      hint: "a small b is bits, a capital B bytes",
      exit: EXIT.usage,
    });
  }
  const amountPerS = parseBytes(`${match[1]}${match[2]}B`, "--uplink");
  return match[3] === "B" ? amountPerS : amountPerS / 8;
}
