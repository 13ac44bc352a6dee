import { closeSync, mkdirSync, mkdtempSync, openSync, rmSync, writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { silentLog } from "../../src/base/log.ts";
import type { PackLayout } from "../../src/pack/layout.ts";
import { metadataBytesOf } from "../../src/pack/metadata.ts";
import type { ReadyPack, Reservation } from "../../src/spool/reservation.ts";
import type { Spool, SpoolOptions } from "../../src/spool/spool.ts";
import type { UploaderEvent, UploaderOptions } from "../../src/spool/uploader.ts";
import { type MadePack, makePack, tapNumbers } from "./packs.ts";

/** The spool from dist/: its threads cannot run the source on Node 20. */
const dist = (name: string): string => new URL(`../../dist/spool/${name}.js`, import.meta.url).href;
export const spoolModule = (await import(dist("spool"))) as typeof import("../../src/spool/spool.ts");
const uploaderModule = (await import(dist("uploader"))) as typeof import("../../src/spool/uploader.ts");
export const recoverModule = (await import(dist("recover"))) as typeof import("../../src/spool/recover.ts");

export const IDENTITY = "ab".repeat(32);
const shape = { taps: 2, hidden: 64, hasLossMask: true, metadataBytes: metadataBytesOf(tapNumbers(2)) };

/** Batch `index` of a made-up plan, always the same: about 15 kB. */
export function packOf(index: number, identity = IDENTITY): MadePack {
  const samples = [3 * index, 3 * index + 1, 3 * index + 2].map((row) => ({ row, tokens: 10 + (row % 7) }));
  return makePack({ index, samples }, shape, new Map(), identity);
}

export const layoutOf = (index: number): PackLayout => packOf(index).layout;
const nowMs = (): number => performance.now();

export function makeRoot(): { root: string; remove: () => void } {
  const root = mkdtempSync(join(tmpdir(), "forebay-spool-"));
  return { root, remove: () => rmSync(root, { recursive: true, force: true }) };
}

export function openSpool(directory: string, options: Partial<SpoolOptions> = {}): Promise<Spool> {
  return spoolModule.Spool.open({
    directory,
    budgetBytes: 16 * 2 ** 20,
    floorBytes: 0,
    owner: { runId: IDENTITY, part: "1/1" },
    log: silentLog,
    nowMs,
    probeMs: 20,
    ...options,
  });
}

/** What an engine does: writes the states of `pack` into the part file. */
export function writeStates(part: string, pack: MadePack): void {
  const fd = openSync(part, "r+");
  try {
    for (const { row, statesByte } of pack.layout.samples) {
      const states = pack.states.get(row)!;
      writeSync(fd, new Uint8Array(states.buffer), 0, states.byteLength, statesByte);
    }
  } finally {
    closeSync(fd);
  }
}

export async function fillReservation(reservation: Reservation, index: number): Promise<ReadyPack> {
  const pack = packOf(index);
  writeStates(await reservation.createPart(index, 0), pack);
  return reservation.finish(pack.contents);
}

/** A batch all the way from reservation to ready/. */
export async function makeReady(spool: Spool, index: number): Promise<ReadyPack> {
  return fillReservation(await spool.reserve(layoutOf(index).bytes), index);
}

export interface UploaderRig {
  uploader: InstanceType<typeof uploaderModule.Uploader>;
  events: UploaderEvent[];
  /** Resolves with the first event, past or coming, that `wanted` accepts. */
  event<Kind extends UploaderEvent["kind"]>(
    kind: Kind,
    wanted?: (event: Extract<UploaderEvent, { kind: Kind }>) => boolean,
  ): Promise<Extract<UploaderEvent, { kind: Kind }>>;
  enqueue(pack: ReadyPack): void;
}

export function startUploader(
  options: Partial<UploaderOptions> & Pick<UploaderOptions, "spool" | "spec">,
): UploaderRig {
  const events: UploaderEvent[] = [];
  const waiters = new Set<() => void>();
  const uploader = new uploaderModule.Uploader({
    traits: { publish: "create-only", verify: "readback", refusesWrongChecksum: true, notes: [] },
    uploads: 4,
    inflightBytes: 2 ** 20,
    threads: 2,
    log: silentLog,
    nowMs,
    random: Math.random,
    reprobeMs: 50,
    backoff: { baseMs: 5, capMs: 50 },
    onEvent: (event) => {
      events.push(event);
      for (const wake of [...waiters]) wake();
    },
    ...options,
  });
  return {
    uploader,
    events,
    event: (kind, wanted = () => true) =>
      new Promise((resolve) => {
        const look = () => {
          const found = events.find((event) => event.kind === kind && wanted(event as never));
          if (!found) return;
          waiters.delete(look);
          resolve(found as never);
        };
        waiters.add(look);
        look();
      }),
    enqueue: (pack) => uploader.enqueue(pack, { identity: IDENTITY, layout: layoutOf(pack.batch) }),
  };
}

export function directorySpec(root: string): UploaderOptions["spec"] {
  mkdirSync(join(root, "store"), { recursive: true });
  return { kind: "directory", directory: join(root, "store"), name: "run" };
}
